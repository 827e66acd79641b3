"""Normalise a sample, and shift it along longitude.

A sample is a pair of states, now and one snapshot later. The input is its fields in SI units, as they are on disk. The
output is the same fields, float32, normalised and shifted to the right. A normalised value says by how many standard
deviations of its channel it is above the mean of its channel. The simulated planet looks the same from every longitude.
Therefore a shifted sample is a valid new sample.

Legend: 2 states (now, next), C channels, H rows (latitude), W columns (longitude).
"""

import torch
from torch import Tensor


def augment_into(out_2CHW: Tensor, raw_2CHW: Tensor, shift: int, means_1C11: Tensor, stds_1C11: Tensor) -> None:
    """Normalise and shift one sample, in float32, and write it to ``out_2CHW``.

    The shift costs no time, because each value is written once in any case, only to another column.

    Args:
        out_2CHW: The tensor that receives the new sample, in standard deviations of each channel.
        raw_2CHW: Both states, in SI units.
        shift: The number of columns by which the sample is shifted to the right, from 0 to W - 1. 0 means no shift.
        means_1C11, stds_1C11: The mean and the standard deviation of each channel, in SI units.
    """
    W = raw_2CHW.shape[-1]
    torch.sub(raw_2CHW[..., : W - shift], means_1C11, out=out_2CHW[..., shift:])
    # The last columns come to the left edge. If the shift is 0, these are no columns.
    torch.sub(raw_2CHW[..., W - shift :], means_1C11, out=out_2CHW[..., :shift])
    out_2CHW.div_(stds_1C11)
