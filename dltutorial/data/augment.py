"""Normalise a pair of states, and shift it along longitude.

In: fields in SI units, as they are on disk. Out: the same fields with mean 0 and standard deviation 1, float32, shifted
to the right. The simulated planet looks the same from every longitude. Therefore a shifted pair is a valid new sample.

Legend: 2 states (now, next), C channels, H rows (latitude), W columns (longitude).
"""

import torch
from torch import Tensor


def augment_into(out_2CHW: Tensor, raw_2CHW: Tensor, shift: int, means_1C11: Tensor, stds_1C11: Tensor) -> None:
    """Normalise and shift one pair, in float32, and write it to ``out_2CHW``.

    The shift costs no time, because each value is written once in any case, only to another column.

    Args:
        out_2CHW: receives the new pair.
        raw_2CHW: both states.
        shift: number of columns by which the pair is shifted to the right.
        means_1C11, stds_1C11: mean and standard deviation of each channel.
    """
    W = raw_2CHW.shape[-1]
    torch.sub(raw_2CHW[..., : W - shift], means_1C11, out=out_2CHW[..., shift:])
    if shift > 0:  # the last columns come to the left edge
        torch.sub(raw_2CHW[..., W - shift :], means_1C11, out=out_2CHW[..., :shift])
    out_2CHW.div_(stds_1C11)
