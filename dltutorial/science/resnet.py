"""Residual networks: ResNet-50 in full, and small ones of the same parts.

In: images (B, C, H, W). Out: logits (B, K), or what the stages give, for networks that draw maps. With 3 channels and
1,000 classes ``ResNet`` has the 25,557,032 weights of He et al. 2015 (arXiv:1512.03385, "50-layer"; the stride lies in
the 3 × 3 convolution, as everybody has it now). Its norms are over groups of channels of one sample (Wu and He 2018,
arXiv:1803.08494): as many weights as batch norm has, and two ranks compute what one does.

Legend: B samples, C channels, H rows × W columns, K classes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import machine
from dltutorial.config import Recipe
from dltutorial.errors import CourseError


def norm(channels: int) -> nn.GroupNorm:
    """Of a quarter of the channels in each group, but at most 32 groups."""
    return nn.GroupNorm(
        max(n for n in (1, 2, 4, 8, 16, 32) if (channels % n == 0 and channels >= 4 * n) or n == 1), channels
    )


def convolution(
    n_in: int, n_out: int, kernel: int = 3, stride: int = 1, rate: int = 1, relu: bool = True
) -> nn.Sequential:
    """A convolution that keeps the size but for its stride, a norm, and perhaps a ReLU; ``rate`` 2 leaves gaps of 1."""
    padding = rate * (kernel // 2)
    layers = [nn.Conv2d(n_in, n_out, kernel, stride, padding, rate, bias=False), norm(n_out)]
    return nn.Sequential(*layers, *[nn.ReLU()] * relu)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut: to few channels, 3 × 3 among those, to four times as many."""

    def __init__(self, n_in: int, width: int, stride: int = 1, rate: int = 1) -> None:
        super().__init__()
        n_out = 4 * width
        self.branch = nn.Sequential(
            convolution(n_in, width, 1),
            convolution(width, width, 3, stride, rate),
            convolution(width, n_out, 1, relu=False),
        )
        same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if same else convolution(n_in, n_out, 1, stride, relu=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, 4 × width, H / stride, W / stride)."""
        return F.relu(self.branch(x_BCHW) + self.shortcut(x_BCHW))


class ResNet(nn.Module):
    """Stem, stages, mean over the image, one matrix."""

    def __init__(
        self,
        channels: int = 3,
        classes: int = 1000,
        depths: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        quarter: bool = True,
        atrous: int = 0,
    ) -> None:
        """Random weights.

        Args:
            channels: of the images.
            classes: logits; 0: no head, for who asks for ``stages`` alone.
            depths: blocks in each stage; each has twice the width of the one before.
            width: of the first stage's narrow convolutions.
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
            first = Bottleneck(n_in, narrow, stride, rate)
            n_in = 4 * narrow
            self.body.append(nn.Sequential(first, *(Bottleneck(n_in, narrow, 1, rate) for _ in range(depth - 1))))
        self.n_out = n_in
        self.head = nn.Linear(n_in, classes) if classes else None
        for block in self.modules() if classes else ():
            if isinstance(block, Bottleneck):  # at first it gives its input (Goyal et al. 2017)
                nn.init.zeros_(block.branch[-1][1].weight)

    def stages(self, x_BCHW: Tensor) -> list[Tensor]:
        """What each stage gives."""
        found, x_BCHW = [], self.stem(x_BCHW)
        for stage in self.body:
            x_BCHW = stage(x_BCHW)
            found.append(x_BCHW)
        return found

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits (B, K)."""
        return self.head(self.stages(x_BCHW)[-1].mean((2, 3)))


def seeded(make: Callable[[], nn.Module], recipe: Recipe) -> nn.Module:
    """The network with the initial weights of the recipe's seed, on the recipe's device.

    Raises:
        CourseError: the recipe asks for cuda and there is none.
    """
    device = machine.device() if recipe.device == "auto" else recipe.device
    if device == "cuda" and not torch.cuda.is_available():
        raise CourseError("device cuda was asked for, but torch sees no CUDA device here; use device=auto")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return make().to(device)
