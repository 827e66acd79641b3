"""Where the bytes of a training step go, on one of N ranks: counted on paper. Chapter 16 counts them in torch, too.

In: a preset, or the shape of the vision transformer, samples on a rank, formats, optimizer, what is sharded. Out: bytes
of weights, copies, gradients, optimizer states and activations.

*Activations* are what the forward pass keeps for the backward pass. A block keeps 16 arrays of B × T × D values: the
two inputs of its norms, in the format of the stream, and 14 in that of the products: the inputs of qkv (1), attention
(3), its projection (1), and of the MLP's first layer (1), GELU (4) and second layer (4). Attention without fusion keeps
its T × T weights as well. Small vectors are left out. Korthikanti et al. 2022 (arXiv:2205.05198), section 4, count the
same for language models. With *checkpointing* a block keeps only its input, and the rest of one block at a time while
that is computed again (their section 5; Chen et al. 2016, arXiv:1604.06174).

*Sharding* is that of ZeRO, Rajbhandari et al. 2020 (arXiv:1910.02054), section 5: stage 1 gives each of N ranks 1/N of
the optimizer states, master weights among them; stage 2 of the gradients, too; stage 3 of the weights, too.

Never is all of it there at once: gradients come while activations go. Not counted is what an operation needs for
itself, the weights that stage 3 gathers for the block at work, the buckets of data parallelism, and what the allocator
wastes.

Legend: B samples on a rank, T tokens, D width, N ranks.
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
        weight, gradient: as the model holds them.
        master: of the float32 weights that the optimizer updates, where the model's own have fewer bits.
        low_copy: of the copies that autocast makes of the matrices, for as long as a step lasts.
        product: of what matrix products and attention keep for the backward pass.
        stream: of what is passed from block to block, and of the loss.
    """

    weight: int
    gradient: int
    master: int
    low_copy: int
    product: int
    stream: int


FORMATS: Mapping[str, Formats] = MappingProxyType({
    "fp32": Formats(weight=4, gradient=4, master=0, low_copy=0, product=4, stream=4),
    "16-bit autocast": Formats(weight=4, gradient=4, master=0, low_copy=2, product=2, stream=4),
    "16-bit weights": Formats(weight=2, gradient=2, master=4, low_copy=0, product=2, stream=2),
})  # fmt: skip
OPTIMIZERS: Mapping[str, int] = MappingProxyType({"adamw": 8, "lamb": 8, "sgd": 4, "lars": 4})  # bytes a weight
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Shape:
    """A vision transformer's sizes.

    Attributes:
        dim, depth, heads: width D, blocks, attention heads.
        tokens: patches of a sample, T.
        patch_values: numbers in a patch, all channels.
    """

    dim: int
    depth: int
    heads: int
    tokens: int
    patch_values: int

    @classmethod
    def of(cls, preset: Preset) -> "Shape":
        """The shape of a preset's model."""
        patch_values = preset.n_channels * preset.patch**2
        return cls(preset.dim, preset.depth, preset.heads, preset.n_tokens, patch_values)

    @property
    def matrix_parameters(self) -> int:
        """Weights of all matrices, the patch embedding included: what autocast copies."""
        return 12 * self.depth * self.dim**2 + 2 * self.patch_values * self.dim

    @property
    def parameters(self) -> int:
        """All weights: matrices, 13 D of biases and norms in a block, positions, last norm, biases at both ends."""
        vectors = 13 * self.depth * self.dim + self.tokens * self.dim + 3 * self.dim + self.patch_values
        return self.matrix_parameters + vectors

    def activation_bytes(self, batch: int, formats: Formats, fused: bool = True, checkpointing: bool = False) -> int:
        """What the forward pass of ``batch`` samples keeps; autocast's copies of weights not included."""
        stream, product = formats.stream, formats.product
        row = batch * self.tokens * self.dim
        block = row * (2 * stream + 14 * product)
        if not fused:
            block += batch * self.heads * self.tokens**2 * product
        kept = self.depth * row * stream + block if checkpointing else self.depth * block
        fields = batch * self.tokens * self.patch_values
        return kept + row * (stream + product) + fields * (2 * stream + product)  # last norm, head; loss, embedding


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
        """All of it."""
        return sum(dataclasses.astuple(self))


def of_step(
    shape: Shape, batch: int, formats: str = "fp32", optimizer: str = "adamw", *, fused: bool = True,
    checkpointing: bool = False, ranks: int = 1, stage: int = 0,
) -> Memory:  # fmt: skip
    """What one rank needs for a step.

    Args:
        shape: of the model.
        batch: samples on this rank.
        formats: a key of ``FORMATS``.
        optimizer: a key of ``OPTIMIZERS``; sgd has momentum.
        fused: whether one kernel does the attention.
        checkpointing: whether blocks keep their input only, and are computed again.
        ranks: that share what is sharded.
        stage: of ZeRO; 0 shards nothing.
    """
    chosen, n = FORMATS[formats], shape.parameters
    shards = [ranks if stage >= needed else 1 for needed in STAGES]  # of what each stage is about
    return Memory(
        weights=n * chosen.weight / shards[3],
        low_copies=shape.matrix_parameters * chosen.low_copy / shards[3],
        master_weights=n * chosen.master / shards[1],
        gradients=n * chosen.gradient / shards[2],
        optimizer=n * OPTIMIZERS[optimizer] / shards[1],
        activations=shape.activation_bytes(batch, chosen, fused, checkpointing),
    )


def largest_batch(device_bytes: float, shape: Shape, **how: Any) -> int:
    """The most samples for which a step fits; 0 if not even one does. ``how``: as for :func:`of_step`."""
    one, two = (of_step(shape, batch, **how).total for batch in (1, 2))
    return max(0, int((device_bytes - one) // (two - one)) + 1)  # activations grow in proportion to the batch
