"""The segmentation network of the case climate, after DeepLabv3+ (Chen et al. 2018, arXiv:1802.02611, figure 2).

A residual encoder, whose last stage has dilated convolutions instead of strides, is followed by dilated convolutions
side by side, and by a decoder. The decoder ends on the full grid, as DeepCAM's does, because fronts are thin.

Legend: B samples, C channels, H rows × W columns, K classes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.science.resnet import ResNet, convolution


class AtrousNet(nn.Module):
    """Images (B, C, H, W) in, logits (B, K, H, W) out."""

    def __init__(self, channels: int, classes: int, width: int = 64) -> None:
        """Create random weights. With ``width`` 64 the encoder is a ResNet-50."""
        super().__init__()
        self.encoder = ResNet(channels, classes=0, width=width, dilated_stages=1)
        n_deep = self.encoder.n_out
        inner = 4 * width
        side_by_side = [convolution(n_deep, inner, kernel=1)]
        side_by_side += [convolution(n_deep, inner, dilation=rate) for rate in (6, 12, 18)]
        self.side_by_side = nn.ModuleList(side_by_side)
        self.of_mean = nn.Conv2d(n_deep, inner, 1)
        self.merge = convolution(5 * inner, inner, kernel=1)
        self.fine = convolution(4 * width, 3 * width // 4, kernel=1)
        self.decoder = nn.Sequential(
            convolution(inner + 3 * width // 4, inner),
            convolution(inner, 2 * width),
        )
        self.full_grid = convolution(channels, width)
        self.head = nn.Sequential(
            convolution(3 * width, 2 * width),
            nn.Conv2d(2 * width, classes, 1),
        )

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the logits (B, K, H, W)."""
        stages = self.encoder.stages(x_BCHW)
        fine = stages[0]
        deep = stages[-1]
        mean = deep.mean((2, 3), keepdim=True)
        mean = F.relu(self.of_mean(mean))
        branches = [layer(deep) for layer in self.side_by_side]
        branches.append(mean.expand(-1, -1, *deep.shape[2:]))
        merged = self.merge(torch.cat(branches, 1))
        merged = resize(merged, fine)
        decoded = self.decoder(torch.cat([merged, self.fine(fine)], 1))
        decoded = resize(decoded, x_BCHW)
        return self.head(torch.cat([decoded, self.full_grid(x_BCHW)], 1))


def resize(x_BCHW: Tensor, like: Tensor) -> Tensor:
    """Interpolate maps to the height and width of other maps."""
    return F.interpolate(x_BCHW, size=like.shape[2:], mode="bilinear")
