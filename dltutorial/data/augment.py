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
    """In float64, with a new array for each operation: twice the bytes, moved five times."""
    x_2CHW = raw_2CHW.astype(np.float64)
    x_2CHW = x_2CHW - means_1C11.astype(np.float64)
    x_2CHW = x_2CHW / stds_1C11.astype(np.float64)
    return np.roll(x_2CHW, shift, axis=-1).astype(np.float32)


def lean_augment(raw_2CHW: Tensor, shift: int, means_1C11: Tensor, stds_1C11: Tensor, out_2CHW: Tensor) -> None:
    """In float32, written once, straight to its final place: the shift only changes where a value is written."""
    if shift:
        torch.sub(raw_2CHW[..., :-shift], means_1C11, out=out_2CHW[..., shift:])
        torch.sub(raw_2CHW[..., -shift:], means_1C11, out=out_2CHW[..., :shift])
    else:
        torch.sub(raw_2CHW, means_1C11, out=out_2CHW)
    out_2CHW.div_(stds_1C11)


def device_augment(raw_2BCHW: Tensor, shift_B: Tensor | None, means_1C11: Tensor, stds_1C11: Tensor) -> Tensor:
    """A complete batch at once, on its device. It overwrites ``raw_2BCHW``."""
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
