"""Where the bytes of a training run go: weights, gradients, optimizer, and what the forward pass keeps for backward.

In: a recipe. Out: bytes as counted on paper, and bytes as torch keeps them.

Legend: B samples, C channels, H × W grid points, T tokens, D width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dltutorial.config import Recipe

_LOW_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_FP32_BYTES = 4


def state_bytes(n_parameters: int) -> dict[str, int]:
    """Float32 weights, their gradients and AdamW's two averages: 16 bytes a parameter, in every precision of a recipe.

    Autocast adds copies of the weights in 16 bits, 2 bytes a parameter, for as long as a step lasts.
    """
    return {"weights": 4 * n_parameters, "gradients": 4 * n_parameters, "optimizer": 8 * n_parameters}


def activation_bytes(recipe: Recipe) -> int:
    """What the forward pass of the vision transformer keeps for the backward pass, counted on paper.

    A block keeps 16 arrays of B × T × D values: the two inputs of its norms, which stay in float32, and 14 that
    follow the precision of the products: the inputs of qkv (1), attention (3), its projection (1), and of the MLP's
    first layer (1), GELU (4) and second layer (4). Attention without fusion keeps its T × T weights as well. Small
    vectors are left out. Korthikanti et al. 2022 (arXiv:2205.05198), section 4, count the same for language models.
    """
    low = _LOW_BYTES[recipe.precision]
    B, T = recipe.global_batch_size, (recipe.n_lat // recipe.patch) * (recipe.n_lon // recipe.patch)
    stream, fields = B * T * recipe.dim, B * recipe.n_channels * recipe.n_lat * recipe.n_lon
    block = stream * (2 * _FP32_BYTES + 14 * low)
    if not recipe.fused_attention:
        block += B * recipe.heads * T**2 * low
    ends = stream * (_FP32_BYTES + low) + fields * (2 * _FP32_BYTES + low)  # last norm and head; loss and embedding
    copies = (
        0
        if low == _FP32_BYTES
        else low * (12 * recipe.depth * recipe.dim + 2 * recipe.n_channels * recipe.patch**2) * recipe.dim
    )
    return recipe.depth * block + ends + copies


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
