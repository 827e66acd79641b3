"""Residual networks: ResNet-50, and small ones of the same layers.

With 3 channels and 1,000 classes ``ResNet`` has the 25,557,032 weights of He et al. 2015 (arXiv:1512.03385, table 1).
The stride is in the 3 × 3 convolution, as in today's implementations. The norms are group norms (Wu and He 2018,
arXiv:1803.08494), which have as many weights as batch norms and give the same result on any number of ranks.

Legend: B samples, C channels, H rows × W columns, K classes.
"""

from torch import Tensor, nn
from torch.nn import functional as F


def norm(channels: int) -> nn.GroupNorm:
    """Return a group norm with at least four channels in each group, and at most 32 groups."""
    for groups in (32, 16, 8, 4, 2):
        if channels % groups == 0 and channels >= 4 * groups:
            return nn.GroupNorm(groups, channels)
    return nn.GroupNorm(1, channels)


def convolution(n_in: int, n_out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a convolution that keeps the size except for its stride, a norm and a ReLU."""
    layer = nn.Conv2d(n_in, n_out, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(layer, norm(n_out), nn.ReLU())


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut: to few channels, 3 × 3 among these, and to four times as many."""

    def __init__(self, n_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        n_out = 4 * width
        self.branch = nn.Sequential(
            convolution(n_in, width, kernel=1),
            convolution(width, width, 3, stride),
            nn.Conv2d(width, n_out, 1, bias=False),
            norm(n_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if n_in != n_out or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return (B, 4 × width, H / stride, W / stride)."""
        return F.relu(self.branch(x_BCHW) + self.shortcut(x_BCHW))


class ResNet(nn.Module):
    """A first convolution, stages of bottlenecks, the mean over the image, and a linear layer."""

    def __init__(
        self,
        channels: int,
        classes: int,
        depths: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        quarter: bool = True,
    ) -> None:
        """Create random weights.

        Args:
            channels: The number of channels of the images.
            classes: The number of classes.
            depths: The number of bottlenecks in each stage.
            width: The narrow width of the first stage. Each further stage has twice the width.
            quarter: The first layers keep a quarter of the rows (7 × 7 and a pooling), as for photographs. Otherwise
                they keep half of the rows.
        """
        super().__init__()
        if quarter:
            self.stem = nn.Sequential(convolution(channels, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        else:
            self.stem = nn.Sequential(convolution(channels, width, 3, 2))
        self.body = nn.Sequential()
        n_in = width
        for number, depth in enumerate(depths):
            narrow = width * 2**number
            stride = 1 if number == 0 else 2
            self.body.append(Bottleneck(n_in, narrow, stride))
            for _ in range(depth - 1):
                self.body.append(Bottleneck(4 * narrow, narrow))
            n_in = 4 * narrow
        self.head = nn.Linear(n_in, classes)
        self.start_as_identity()

    def start_as_identity(self) -> None:
        """Set the last norm of each branch to 0, so that a bottleneck returns its shortcut (Goyal et al. 2017)."""
        for module in self.modules():
            if isinstance(module, Bottleneck):
                nn.init.zeros_(module.branch[-1].weight)  # type: ignore[arg-type]

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the logits (B, K)."""
        features_BCHW = self.body(self.stem(x_BCHW))
        return self.head(features_BCHW.mean((2, 3)))
