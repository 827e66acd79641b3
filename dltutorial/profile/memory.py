"""How much memory a training step needs on one of N ranks, by a formula. Chapter 16 compares it with torch.

Input: a preset or the shape of the vision transformer, samples on a rank, formats, optimizer, sharding.
Output: bytes of weights, copies, gradients, optimizer state and activations.

*Activations* are what the forward pass saves for the backward pass. A block saves 16 arrays of B × T × D values. Two of
them are the inputs of its norms, in the format of the residual stream. The other 14 are in the format of the matmuls:
the inputs of qkv (1), attention (3), the projection of attention (1), the first layer of the MLP (1), GELU (4) and the
second layer of the MLP (4). Attention is one fused kernel, so its T × T weights are not saved. Small vectors do not
count. Korthikanti et al. 2022 (arXiv:2205.05198), section 4, count the same arrays for language models.

With *checkpointing* a block saves only its input, and recomputes the rest in the backward pass. The most memory is
needed when the last block has been recomputed: the inputs of all L blocks, the other 15 arrays of this block, the
gradient of its output (1), and the gradient of the wide array between the two layers of its MLP (4). With values of one
format, this is L + 20 arrays (chapter 16; Chen et al. 2016, arXiv:1604.06174).

*Sharding* follows ZeRO, Rajbhandari et al. 2020 (arXiv:1910.02054), section 5. In stage 1 each of N ranks has 1/N of
the optimizer state, which includes the master weights. Stage 2 also shards the gradients, and stage 3 the weights.

The sum is an upper bound for these items, because gradients are made while activations are freed. It does not contain
the workspace of operations, the weights that stage 3 gathers for a block, the buckets of DDP, and what the allocator
wastes.

Legend of shapes: B samples on a rank, T tokens of a sample, D width.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dltutorial.config import Preset


@dataclass(frozen=True)
class Formats:
    """Bytes of a value.

    Attributes:
        weight: In the model. Gradients have the same format.
        master: In the float32 weights that the optimizer updates if the model's own weights have fewer bits.
        low_copy: In the copies of the matrices that autocast makes for each step.
        product: In the arrays that matmuls and attention save for the backward pass.
        stream: In the residual stream from block to block, and in the loss.
    """

    weight: int
    master: int
    low_copy: int
    product: int
    stream: int


FORMATS: Mapping[str, Formats] = MappingProxyType(
    {
        "fp32": Formats(weight=4, master=0, low_copy=0, product=4, stream=4),
        "16-bit autocast": Formats(weight=4, master=0, low_copy=2, product=2, stream=4),
        "16-bit weights": Formats(weight=2, master=4, low_copy=0, product=2, stream=2),
    }
)
OPTIMIZERS: Mapping[str, int] = MappingProxyType({"adamw": 8, "lamb": 8, "sgd": 4, "lars": 4})  # bytes per weight


@dataclass(frozen=True)
class Shape:
    """The sizes of a vision transformer.

    Attributes:
        dim: Width D.
        depth: The number of blocks.
        tokens: The number of tokens T, which are the patches of a sample.
        patch_values: Numbers in a patch, over all channels.
    """

    dim: int
    depth: int
    tokens: int
    patch_values: int

    @classmethod
    def of(cls, preset: Preset) -> "Shape":
        """The shape of a preset's model."""
        patch_values = preset.n_channels * preset.patch**2
        return cls(preset.dim, preset.depth, preset.n_tokens, patch_values)

    @property
    def matrix_parameters(self) -> int:
        """The number of weights in all matrices, including the patch embedding. Autocast copies these weights."""
        return 12 * self.depth * self.dim**2 + 2 * self.patch_values * self.dim

    @property
    def parameters(self) -> int:
        """The number of all weights."""
        block_vectors = 13 * self.dim  # biases and norms
        positions = self.tokens * self.dim
        other_vectors = 3 * self.dim + self.patch_values  # the last norm, and the biases of embedding and head
        return self.matrix_parameters + self.depth * block_vectors + positions + other_vectors

    def activation_bytes(self, batch: int, formats: Formats, checkpointing: bool = False) -> int:
        """Bytes of activations when they need the most memory, without autocast's copies of weights.

        Args:
            batch: Samples B on this rank.
            formats: Bytes of a value.
            checkpointing: Whether blocks save only their input. Then gradients of activations count, too.
        """
        values_BTD = batch * self.tokens * self.dim
        values_of_field = batch * self.tokens * self.patch_values
        batch_bytes = values_of_field * (formats.product + formats.stream)  # the input, and the target of the loss
        norm_head_and_loss_bytes = values_BTD * (formats.stream + formats.product) + values_of_field * formats.stream
        if not checkpointing:
            blocks_bytes = self.depth * values_BTD * (2 * formats.stream + 14 * formats.product)
            return batch_bytes + blocks_bytes + norm_head_and_loss_bytes
        inputs_bytes = self.depth * values_BTD * formats.stream
        # When a block is recomputed, the activations of norm, head and loss are released already.
        recomputed_bytes = values_BTD * (2 * formats.stream + 18 * formats.product)
        return batch_bytes + inputs_bytes + max(recomputed_bytes, norm_head_and_loss_bytes)


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank."""

    weights: float
    low_copies: float
    master_weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """The sum."""
        return sum(dataclasses.astuple(self))


def of_step(
    shape: Shape,
    batch: int,
    formats: str = "fp32",
    optimizer: str = "adamw",
    *,
    checkpointing: bool = False,
    ranks: int = 1,
    stage: int = 0,
) -> Memory:
    """Bytes that one rank needs for a training step.

    Args:
        shape: The sizes of the model.
        batch: Samples on this rank.
        formats: A key of ``FORMATS``.
        optimizer: A key of ``OPTIMIZERS``. sgd has momentum.
        checkpointing: Whether blocks save only their input, and recompute the rest.
        ranks: The number of ranks that share what is sharded.
        stage: The stage of ZeRO, from 0 (nothing is sharded) to 3.

    Returns:
        The bytes by item.
    """
    n_bytes = FORMATS[formats]
    n_weights = shape.parameters
    state_shards = ranks if stage >= 1 else 1
    gradient_shards = ranks if stage >= 2 else 1
    weight_shards = ranks if stage >= 3 else 1
    return Memory(
        weights=n_weights * n_bytes.weight / weight_shards,
        low_copies=shape.matrix_parameters * n_bytes.low_copy / weight_shards,
        master_weights=n_weights * n_bytes.master / state_shards,
        gradients=n_weights * n_bytes.weight / gradient_shards,
        optimizer=n_weights * OPTIMIZERS[optimizer] / state_shards,
        activations=shape.activation_bytes(batch, n_bytes, checkpointing),
    )


def largest_batch(device_bytes: float, shape: Shape, **options: Any) -> int:
    """The largest number of samples for which a step fits. It is 0 if not even one sample fits.

    Args:
        device_bytes: The memory of the device.
        shape: The sizes of the model.
        options: Further arguments of :func:`of_step`.
    """
    one_sample = of_step(shape, 1, **options).total
    two_samples = of_step(shape, 2, **options).total
    bytes_per_sample = two_samples - one_sample  # activations are proportional to the batch
    return max(0, int((device_bytes - one_sample) // bytes_per_sample) + 1)
