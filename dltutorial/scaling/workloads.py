"""What one rank has to do in a training step: work for every sample, and gradients that become ready on the way back.

In: the architecture of a published network. Out: a ``Workload``: for each layer, in the order of the backward pass,
the bytes of its gradient and its share of the work. Both matter: a layer with many weights and little work, such as
the bottom of a U-Net, has much to send and nothing to hide it behind.

A convolution of k^d weights per pair of channels has k^d C_in C_out weights, and does as many multiply-adds for each
point it is evaluated at. The backward pass takes twice the work of the forward pass.

Legend: L layers, in the order of the backward pass.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One rank's step.

    Attributes:
        name: for tables.
        weights_L: parameters of each layer.
        work_L: share of the work of each layer, summing to 1.
        sample_s: seconds that one sample takes on one rank, forward and backward, with nothing else around.
        bytes_per_value: of a gradient on the wire: 4 for float32, 2 for half precision.
    """

    name: str
    weights_L: tuple[float, ...]
    work_L: tuple[float, ...]
    sample_s: float = 0.0
    bytes_per_value: int = 4

    @property
    def gradient_bytes(self) -> float:
        """All that a rank contributes to the all-reduces of one step."""
        return sum(self.weights_L) * self.bytes_per_value

    def at(self, samples_per_s: float, bytes_per_value: int | None = None) -> "Workload":
        """The same network on a rank that trains so many samples a second on its own."""
        wire = bytes_per_value or self.bytes_per_value
        return dataclasses.replace(self, sample_s=1 / samples_per_s, bytes_per_value=wire)


def even(name: str, n_parameters: float, n_layers: int = 50) -> Workload:
    """A network of which only the size is known: every layer has the same weights and the same work."""
    return Workload(name, (n_parameters / n_layers,) * n_layers, (1 / n_layers,) * n_layers)


def unet3d(edge: int = 64) -> Workload:
    """The 3-D U-Net of the SC21 and SC22 tutorials: kernels of 4³, stride 2, six levels. NERSC/sc22-dl-tutorial."""
    down = [4, 64, 128, 256, 512, 512, 512]
    up = [(512, 512), (1024, 512), (1024, 256), (512, 128), (256, 64), (128, 5)]
    layers = []
    for level, (n_in, n_out) in enumerate(itertools.pairwise(down)):
        layers.append((64 * n_in * n_out, n_out, (edge >> (level + 1)) ** 3))
    for level, (n_in, n_out) in enumerate(up):  # transposed: evaluated at the points that it comes from
        layers.append((64 * n_in * n_out, n_out, (edge >> (6 - level)) ** 3))
    return _network("3-D U-Net", layers)


def resnet50(edge: int = 224) -> Workload:
    """ResNet-50. He et al. 2015, arXiv:1512.03385, table 1; batch normalisation has two weights a channel."""
    points = (edge // 2) ** 2
    layers = [(49 * 3 * 64, 2 * 64, points)]
    n_in, points = 64, points // 4
    for stage, n_blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(n_blocks):
            before, points = points, points // 4 if stage and not block else points
            layers.append((n_in * width, 2 * width, before))
            layers.append((9 * width * width, 2 * width, points))
            layers.append((4 * width * width, 8 * width, points))
            if not block:
                layers.append((4 * n_in * width, 8 * width, points))
            n_in = 4 * width
    layers.append((2048 * 1000, 1000, 1))
    return _network("ResNet-50", layers)


NETWORKS = {"unet3d": unet3d, "resnet50": resnet50}


def _network(name: str, layers: Sequence[tuple[int, int, int]]) -> Workload:
    """From (weights of the kernel, other weights, points) of every layer in the order of the forward pass."""
    products = [kernel * points for kernel, _, points in layers]
    weights = tuple(float(kernel + other) for kernel, other, _ in reversed(layers))
    return Workload(name, weights, tuple(product / sum(products) for product in reversed(products)))
