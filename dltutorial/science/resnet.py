"""Residual networks: ResNet-50 in full, and small ones of the same parts.

In: images (B, C, H, W). Out: logits (B, K), or what the stages give, for networks that draw maps. With 3 channels and
1,000 classes ``ResNet`` has the 25,557,032 weights of He et al. 2015 (arXiv:1512.03385, "50-layer"; the stride lies in
the 3 × 3 convolution, as everybody has it now). Its norms are over groups of channels of one sample (Wu and He 2018,
arXiv:1803.08494): as many weights as batch norm has, and two ranks compute what one does.

Legend: B samples, C channels, H rows × W columns, K classes.
"""

from torch import Tensor, nn
from torch.nn import functional as F


def norm(channels: int) -> nn.GroupNorm:
    """At least four channels in each group, and at most 32 groups."""
    sizes = [n for n in (32, 16, 8, 4, 2) if channels % n == 0 and channels >= 4 * n]
    return nn.GroupNorm(max(sizes, default=1), channels)


def convolution(n_in: int, n_out: int, kernel: int = 3, stride: int = 1, rate: int = 1, relu: bool = True) -> nn.Module:
    """A convolution that keeps the size but for its stride, a norm, and perhaps a ReLU; ``rate`` 2 leaves gaps of 1."""
    layers = [nn.Conv2d(n_in, n_out, kernel, stride, rate * (kernel // 2), rate, bias=False), norm(n_out)]
    return nn.Sequential(*layers, *[nn.ReLU()] * relu)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut: to few channels, 3 × 3 among those, to four times as many."""

    def __init__(self, n_in: int, width: int, stride: int = 1, rate: int = 1) -> None:
        super().__init__()
        n_out = 4 * width
        first, second = convolution(n_in, width, 1), convolution(width, width, 3, stride, rate)
        self.branch = nn.Sequential(first, second, convolution(width, n_out, 1, relu=False))
        same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if same else convolution(n_in, n_out, 1, stride, relu=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, 4 × width, H / stride, W / stride)."""
        return F.relu(self.branch(x_BCHW) + self.shortcut(x_BCHW))


class ResNet(nn.Module):
    """Stem, stages, mean over the image, one matrix."""

    def __init__(
        self, channels: int = 3, classes: int = 1000, depths: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64, quarter: bool = True, atrous: int = 0,
    ) -> None:  # fmt: skip
        """Random weights.

        Args:
            channels, classes: of the images, of the logits; with 0 classes there is no head, only ``stages``.
            depths, width: blocks of each stage; of the first one's narrow convolutions, and the next has twice that.
            quarter: the stem keeps a quarter of the rows (7 × 7, then a pool), as for photographs; else half of them.
            atrous: so many of the last stages do not halve the image; their convolutions have gaps instead.
        """
        super().__init__()
        stem = [convolution(channels, width, 7 if quarter else 3, 2)]
        self.stem = nn.Sequential(*stem, *[nn.MaxPool2d(3, 2, 1)] * quarter)
        self.body, n_in, rate = nn.ModuleList(), width, 1
        for number, depth in enumerate(depths):
            gaps = number >= len(depths) - atrous
            rate, stride = (2 * rate if gaps else 1), (1 if gaps or number == 0 else 2)
            narrow = width * 2**number
            more = (Bottleneck(4 * narrow, narrow, 1, rate) for _ in range(depth - 1))
            self.body.append(nn.Sequential(Bottleneck(n_in, narrow, stride, rate), *more))
            n_in = 4 * narrow
        self.n_out = n_in
        self.head: nn.Module = nn.Linear(n_in, classes) if classes else nn.Identity()
        for block in self.modules() if classes else ():
            if isinstance(block, Bottleneck):  # at first it gives its input (Goyal et al. 2017)
                nn.init.zeros_(block.branch[-1][1].weight)  # type: ignore[index]

    def stages(self, x_BCHW: Tensor) -> list[Tensor]:
        """What each stage gives."""
        found = [self.stem(x_BCHW)]
        for stage in self.body:
            found.append(stage(found[-1]))
        return found[1:]

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits (B, K)."""
        return self.head(self.stages(x_BCHW)[-1].mean((2, 3)))
