"""What a training step keeps for its backward pass: counted on paper, and as autograd keeps it.

In: a recipe of the vision transformer, or a model at work. Out: bytes.

A block keeps 16 arrays of B × T × D values: the two inputs of its norms, in float32, and 14 in the format of the
products: the inputs of qkv (1), attention (3), its projection (1), and of the MLP's first layer (1), GELU (4) and
second layer (4). Attention without fusion keeps its T × T weights as well. Autocast also keeps a copy of every matrix
in 16 bits. Small vectors are left out. Korthikanti et al. 2022 (arXiv:2205.05198), section 4, count the same for
language models.

Legend: B samples, T tokens, D width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dltutorial.config import Recipe

_FLOAT32 = 4  # bytes


def activation_bytes(recipe: Recipe) -> int:
    """What the forward pass of a recipe's model keeps for the backward pass, autocast's copies of weights included."""
    B, D = recipe.global_batch_size, recipe.dim
    T = (recipe.n_lat // recipe.patch) * (recipe.n_lon // recipe.patch)
    patch_values = recipe.n_channels * recipe.patch**2
    autocast = recipe.precision in ("bf16", "fp16")
    product = 2 if autocast else _FLOAT32  # bytes of what a matrix product keeps
    block = B * T * D * (2 * _FLOAT32 + 14 * product)
    if not recipe.fused_attention:
        block += B * recipe.heads * T**2 * product
    last_norm_and_head = B * T * D * (_FLOAT32 + product)
    loss_and_embedding = B * T * patch_values * (2 * _FLOAT32 + product)
    copies = 2 * (12 * recipe.depth * D**2 + 2 * patch_values * D) if autocast else 0
    return recipe.depth * block + last_norm_and_head + loss_and_embedding + copies


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
