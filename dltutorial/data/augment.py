"""Normalise a pair of states and shift it along longitude, in three versions.

In: raw fields in SI units. Out: the same fields with mean 0 and standard deviation 1, float32. The three versions give
the same values, and differ in how many bytes they move. The simulated planet looks the same from every longitude,
therefore a shifted pair is a valid new sample.

Legend: B pairs, 2 states (now, next), C channels, H rows (latitude), W columns (longitude).
"""

import numpy as np
import torch
from torch import Tensor


def naive_augment(raw_2CHW: np.ndarray, shift: int, means_1C11: np.ndarray, stds_1C11: np.ndarray) -> np.ndarray:
    """Compute in float64 with a new array for each operation, which moves twice the bytes, five times.

    Args:
        raw_2CHW: a pair of states.
        shift: columns by which the pair is shifted to the right.
        means_1C11, stds_1C11: of each channel.

    Returns:
        The new pair, float32.
    """
    x_2CHW = raw_2CHW.astype(np.float64)
    x_2CHW = x_2CHW - means_1C11.astype(np.float64)
    x_2CHW = x_2CHW / stds_1C11.astype(np.float64)
    return np.roll(x_2CHW, shift, axis=-1).astype(np.float32)


def lean_augment(raw_2CHW: Tensor, shift: int, means_1C11: Tensor, stds_1C11: Tensor, out_2CHW: Tensor) -> None:
    """Compute in float32 and write each value to its final place. The shift only changes where a value is written.

    Args:
        raw_2CHW, shift, means_1C11, stds_1C11: as in ``naive_augment``.
        out_2CHW: receives the new pair.
    """
    if shift == 0:
        torch.sub(raw_2CHW, means_1C11, out=out_2CHW)
    else:
        torch.sub(raw_2CHW[..., :-shift], means_1C11, out=out_2CHW[..., shift:])
        torch.sub(raw_2CHW[..., -shift:], means_1C11, out=out_2CHW[..., :shift])
    out_2CHW.div_(stds_1C11)


def device_augment(raw_2BCHW: Tensor, shift_B: Tensor | None, means_1C11: Tensor, stds_1C11: Tensor) -> Tensor:
    """Compute a complete batch at once, on its device. The result overwrites ``raw_2BCHW``.

    Args:
        raw_2BCHW: B pairs of states.
        shift_B: shift of each pair; None shifts nothing.
        means_1C11, stds_1C11: of each channel.

    Returns:
        The new batch.
    """
    raw_2BCHW.sub_(means_1C11)
    raw_2BCHW.div_(stds_1C11)
    if shift_B is None:
        return raw_2BCHW
    return rolled(raw_2BCHW, shift_B)


def rolled(x_BCHW: Tensor, shift_B: Tensor) -> Tensor:
    """Shift each sample by its own distance along the last axis. More axes may stand before B."""
    W = x_BCHW.shape[-1]
    columns_W = torch.arange(W, device=shift_B.device)
    source_BW = (columns_W - shift_B[:, None]) % W  # the column from which each new column is taken
    index = source_BW[:, None, None, :].expand_as(x_BCHW)
    return x_BCHW.gather(-1, index)
