"""The network of the case cosmology, after CosmoFlow: 3-D convolutions and dense layers.

Legend: B boxes, C channels, D × H × W cells of a box, P parameters.
"""

from torch import Tensor, nn
from torch.nn import functional as F

N_PARAMETERS = 4
N_REDSHIFTS = 4


class CosmoNet(nn.Module):
    """Convolutions with a pooling behind each, then three dense layers: (B, C, side, side, side) → (B, P)."""

    def __init__(self, width: int, n_layers: int) -> None:
        """Create random weights.

        Args:
            width: The number of channels of the first layer. Each further layer has twice as many.
            n_layers: The number of convolutions. Each of them is followed by a halving of the box.
        """
        super().__init__()
        self.convolutions = nn.ModuleList()
        n_in = N_REDSHIFTS
        for number in range(n_layers):
            n_out = width * 2**number
            self.convolutions.append(nn.Conv3d(n_in, n_out, 3, padding=1))
            n_in = n_out
        self.dense = nn.Sequential(
            nn.Linear(n_in, 128),
            nn.LeakyReLU(),
            nn.Linear(128, 64),
            nn.LeakyReLU(),
            nn.Linear(64, N_PARAMETERS),
        )

    def forward(self, x_BCDHW: Tensor) -> Tensor:
        """Return the parameters (B, P) of boxes."""
        for convolution in self.convolutions:
            x_BCDHW = F.leaky_relu(convolution(x_BCDHW))
            x_BCDHW = F.avg_pool3d(x_BCDHW, 2)
        return self.dense(x_BCDHW.mean((2, 3, 4)))
