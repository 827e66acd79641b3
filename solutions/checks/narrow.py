"""A narrow and deep network for a window of the field, for the check of CUDA graphs.

The input and the output are fields of shape (B, C, H, W). The operations are so small that their launches take longer
than their work. Such a network is launch-bound, like many small networks inside simulations.

Legend: B samples, C channels, H × W grid points of the window, D width.

Source: He et al. 2015, arXiv:1512.03385, for the residual blocks.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class NarrowMLP(nn.Module):
    """Forecasts the next state of the window as the present state plus a change."""

    def __init__(self, shape: tuple[int, int, int], dim: int = 16, depth: int = 32) -> None:
        """Make a network with random weights.

        Args:
            shape: The channels, latitudes and longitudes of the window.
            dim: The width D.
            depth: The number of blocks of two linear layers.
        """
        super().__init__()
        values = shape[0] * shape[1] * shape[2]
        self.embed = nn.Linear(values, dim)
        self.blocks = nn.ModuleList(_Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, values)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the next state, in the units of the input."""
        x_BD = self.embed(x_BCHW.flatten(1))
        for block in self.blocks:
            x_BD = block(x_BD)
        return x_BCHW + self.head(x_BD).view_as(x_BCHW)


class _Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.outer = nn.Linear(dim, dim)

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD + self.outer(F.relu(self.inner(x_BD)))
