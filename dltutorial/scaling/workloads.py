"""The work of one rank in a training step: compute for every sample, and gradients that become ready layer by layer.

In: the architecture of a published network. Out: a ``Workload``, which has the number of weights and the share of the
work of each layer. Both matter, because a layer with many weights and little work, such as the bottom of a U-Net, has
much to send and no compute to overlap it with.

A convolution of k^d weights per pair of channels has k^d C_in C_out weights. It does as many multiply-adds for each
point at which it is evaluated. The backward pass takes twice the work of the forward pass.

Legend: L layers, in the order of the backward pass, from the last to the first.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Workload:
    """The step of one rank.

    Attributes:
        weights_L: number of parameters of each layer.
        work_L: share of the work of each layer; the sum is 1.
        sample_s: seconds of one sample on one rank, forward and backward, without communication.
        bytes_per_value: of a gradient that is sent: 4 for float32, 2 for half precision.
    """

    weights_L: tuple[float, ...]
    work_L: tuple[float, ...]
    sample_s: float = 0.0
    bytes_per_value: int = 4

    def at(self, samples_per_s: float, bytes_per_value: int | None = None) -> "Workload":
        """The same network on a rank that alone trains with this throughput."""
        return dataclasses.replace(
            self,
            sample_s=1 / samples_per_s,
            bytes_per_value=bytes_per_value or self.bytes_per_value,
        )


class _Layer(NamedTuple):
    """Weights of the kernel, other weights (such as biases), and points at which the kernel is evaluated."""

    kernel: int
    other: int
    points: int


def even(n_parameters: float, n_layers: int = 50) -> Workload:
    """A network of which only the size is known. All layers have the same number of weights and the same work."""
    return Workload((n_parameters / n_layers,) * n_layers, (1 / n_layers,) * n_layers)


def unet3d(edge: int = 64) -> Workload:
    """The 3-D U-Net of the SC21 and SC22 tutorials: kernels of 4³, stride 2, six levels. NERSC/sc22-dl-tutorial."""
    down = [4, 64, 128, 256, 512, 512, 512]
    up = [(512, 512), (1024, 512), (1024, 256), (512, 128), (256, 64), (128, 5)]
    layers = []
    for level, (n_in, n_out) in enumerate(itertools.pairwise(down)):
        layers.append(_Layer(64 * n_in * n_out, n_out, (edge >> (level + 1)) ** 3))
    for level, (n_in, n_out) in enumerate(up):
        # A transposed convolution is evaluated at the points of its input.
        layers.append(_Layer(64 * n_in * n_out, n_out, (edge >> (6 - level)) ** 3))
    return _network(layers)


def resnet50(edge: int = 224) -> Workload:
    """ResNet-50. He et al. 2015, arXiv:1512.03385, table 1; batch normalisation has two weights per channel."""
    points = (edge // 2) ** 2
    layers = [_Layer(49 * 3 * 64, 2 * 64, points)]
    n_in = 64
    points = points // 4  # max pooling
    for stage, n_blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(n_blocks):
            is_first = block == 0
            layers.append(_Layer(n_in * width, 2 * width, points))
            if is_first and stage > 0:
                points = points // 4  # the kernel of 3 × 3 has stride 2
            layers.append(_Layer(9 * width * width, 2 * width, points))
            layers.append(_Layer(4 * width * width, 8 * width, points))
            if is_first:
                layers.append(_Layer(4 * n_in * width, 8 * width, points))  # the shortcut changes the width
            n_in = 4 * width
    layers.append(_Layer(2048 * 1000, 1000, 1))
    return _network(layers)


NETWORKS = {"unet3d": unet3d, "resnet50": resnet50}


def _network(layers: Sequence[_Layer]) -> Workload:
    """A workload from layers in the order of the forward pass."""
    backward = layers[::-1]
    total = sum(layer.kernel * layer.points for layer in layers)
    weights_L = tuple(float(layer.kernel + layer.other) for layer in backward)
    work_L = tuple(layer.kernel * layer.points / total for layer in backward)
    return Workload(weights_L, work_L)
