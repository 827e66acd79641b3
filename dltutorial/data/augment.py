"""Normalise a pair of states, and shift it along longitude, in three versions.

In: fields in SI units, as they are on disk. Out: the same fields with mean 0 and standard deviation 1, float32, shifted
to the right. The simulated planet looks the same from every longitude. Therefore a shifted pair is a valid new sample.
The three versions give the same values. They differ in the number of bytes that they read and write, which decides how
long they take.

    naive_augment   one pair, in float64, with a new array for each operation
    augment_into    one pair, in float32, written directly to its place in a batch
    augment_batch   a complete batch at once, in place, on the device that trains

Legend: B pairs, 2 states (now, next), C channels, H rows (latitude), W columns (longitude).
"""

import numpy as np
import torch
from torch import Tensor


def naive_augment(raw_2CHW: np.ndarray, shift: int, means_1C11: np.ndarray, stds_1C11: np.ndarray) -> np.ndarray:
    """Normalise and shift one pair in the most direct way. It moves twice the bytes, five times.

    Args:
        raw_2CHW: both states.
        shift: number of columns by which the pair is shifted to the right.
        means_1C11, stds_1C11: mean and standard deviation of each channel.

    Returns:
        The new pair (2, C, H, W), float32.
    """
    x_2CHW = raw_2CHW.astype(np.float64)
    x_2CHW = x_2CHW - means_1C11.astype(np.float64)
    x_2CHW = x_2CHW / stds_1C11.astype(np.float64)
    x_2CHW = np.roll(x_2CHW, shift, axis=-1)
    return x_2CHW.astype(np.float32)


def augment_into(out_2CHW: Tensor, raw_2CHW: Tensor, shift: int, means_1C11: Tensor, stds_1C11: Tensor) -> None:
    """Normalise and shift one pair, and write it to ``out_2CHW``.

    The shift costs no time, because each value is written once in any case, only to another column.

    Args:
        out_2CHW: receives the new pair.
        raw_2CHW, shift, means_1C11, stds_1C11: as in ``naive_augment``.
    """
    W = raw_2CHW.shape[-1]
    torch.sub(raw_2CHW[..., : W - shift], means_1C11, out=out_2CHW[..., shift:])
    if shift > 0:  # the last columns come to the left edge
        torch.sub(raw_2CHW[..., W - shift :], means_1C11, out=out_2CHW[..., :shift])
    out_2CHW.div_(stds_1C11)


def augment_batch(both_2BCHW: Tensor, shift_B: Tensor | None, means_1C11: Tensor, stds_1C11: Tensor) -> Tensor:
    """Normalise a complete batch in place, and shift each pair by its own number of columns.

    Args:
        both_2BCHW: both states of B pairs. They are overwritten.
        shift_B: the shift of each pair, or None to shift nothing.
        means_1C11, stds_1C11: mean and standard deviation of each channel.

    Returns:
        The new batch (2, B, C, H, W), on the same device.
    """
    both_2BCHW.sub_(means_1C11)
    both_2BCHW.div_(stds_1C11)
    if shift_B is None:
        return both_2BCHW
    return roll_each(both_2BCHW, shift_B)


def roll_each(x_BCHW: Tensor, shift_B: Tensor) -> Tensor:
    """Shift each sample to the right by its own number of columns. Columns that leave at the right enter at the left.

    Args:
        x_BCHW: the samples. More axes may stand before B.
        shift_B: the shift of each sample.

    Returns:
        New samples of the same shape.
    """
    W = x_BCHW.shape[-1]
    column_W = torch.arange(W, device=shift_B.device)
    source_BW = (column_W - shift_B[:, None]) % W  # the column from which each new column is taken
    index = source_BW[:, None, None, :].expand_as(x_BCHW)
    return x_BCHW.gather(-1, index)
