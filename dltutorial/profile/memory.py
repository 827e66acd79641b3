"""Where the bytes of a training run go: weights, gradients, optimizer, and what the forward pass keeps for backward.

In: a recipe. Out: bytes as counted on paper, and bytes as torch keeps them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dltutorial.config import Recipe
from dltutorial.profile import memory_model


def state_bytes(n_parameters: int) -> dict[str, int]:
    """Float32 weights, their gradients and AdamW's two averages: 16 bytes a parameter, in every precision of a recipe.

    Autocast adds copies of the weights in 16 bits, 2 bytes a parameter, for as long as a step lasts.
    """
    return {"weights": 4 * n_parameters, "gradients": 4 * n_parameters, "optimizer": 8 * n_parameters}


def activation_bytes(recipe: Recipe) -> int:
    """What the forward pass of the vision transformer keeps for the backward pass, counted on paper.

    Autocast's copies of the weights are kept, too, and count. The arrays themselves: ``memory_model``.
    """
    shape = memory_model.Shape.of(recipe)
    low = recipe.precision in ("bf16", "fp16")
    formats = memory_model.AUTOCAST if low else memory_model.FORMATS["fp32"]
    kept = shape.activation_bytes(recipe.global_batch_size, formats, recipe.fused_attention)
    return kept + shape.matrix_parameters * formats.low_copy


@contextmanager
def counting_saved(model: nn.Module) -> Iterator[dict[torch.dtype, int]]:
    """Inside, whatever autograd keeps for the backward pass is counted: bytes by dtype, weights left out.

    Several views of one array count once.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[torch.dtype, int] = {}
    seen: dict[int, Tensor] = {}  # kept alive until the end, so that no address is given away twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = tensor
            found[tensor.dtype] = found.get(tensor.dtype, 0) + storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found
    seen.clear()
