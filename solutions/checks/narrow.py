"""A model of many small operations: a narrow, deep network for a window of the field, (B, C, H, W) in and out.

Its work is next to nothing, so its time is what starting the operations costs: it is *launch-bound*, as many small
networks inside simulations are. He et al. 2015 (arXiv:1512.03385) for the residual blocks.

Legend: B samples, C channels, H × W grid points of the window, D width.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class NarrowMLP(nn.Module):
    """Forecasts the window's next state as the state now plus a change."""

    def __init__(self, shape: tuple[int, int, int], dim: int = 16, depth: int = 32) -> None:
        """The weights are random.

        Args:
            shape: channels, latitudes and longitudes of the window.
            dim: width D.
            depth: blocks of two linear layers.
        """
        super().__init__()
        values = shape[0] * shape[1] * shape[2]
        self.embed = nn.Linear(values, dim)
        self.blocks = nn.ModuleList(_Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, values)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """The next state, in the units of the input."""
        x_BD = self.embed(x_BCHW.flatten(1))
        for block in self.blocks:
            x_BD = block(x_BD)
        return x_BCHW + self.head(x_BD).view_as(x_BCHW)


class _Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD + self.outer(F.relu(self.inner(x_BD)))
