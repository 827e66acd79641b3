"""Normalise a pair of states and shift it along longitude: as a newcomer writes it, lean, and on the device.

In: raw fields in SI units. Out: the same fields with mean 0 and deviation 1, float32. All three give the same values;
they differ in the memory they move. The simulated planet looks the same from every longitude, so that a shifted
pair is as good as new.

Legend: B pairs, 2 states (now, next), C channels, H rows (latitude), W columns (longitude).
"""

import numpy as np
import torch
from torch import Tensor


def naive_augment(raw_2CHW: np.ndarray, shift: int, means_1C11: np.ndarray, stds_1C11: np.ndarray) -> np.ndarray:
    """In float64, with a new array for every operation: twice the bytes, five times moved."""
    x_2CHW = raw_2CHW.astype(np.float64)
    x_2CHW = x_2CHW - means_1C11.astype(np.float64)
    x_2CHW = x_2CHW / stds_1C11.astype(np.float64)
    return np.roll(x_2CHW, shift, axis=-1).astype(np.float32)


def lean_augment(raw_2CHW: Tensor, shift: int, means_1C11: Tensor, stds_1C11: Tensor, out_2CHW: Tensor) -> None:
    """In float32, written once, to where it is wanted: the shift only changes the place."""
    if shift:
        torch.sub(raw_2CHW[..., :-shift], means_1C11, out=out_2CHW[..., shift:])
        torch.sub(raw_2CHW[..., -shift:], means_1C11, out=out_2CHW[..., :shift])
    else:
        torch.sub(raw_2CHW, means_1C11, out=out_2CHW)
    out_2CHW.div_(stds_1C11)


def device_augment(raw_2BCHW: Tensor, shift_B: Tensor | None, means_1C11: Tensor, stds_1C11: Tensor) -> Tensor:
    """A whole batch at once, where it is; ``raw_2BCHW`` is used up."""
    raw_2BCHW.sub_(means_1C11).div_(stds_1C11)
    return raw_2BCHW if shift_B is None else rolled(raw_2BCHW, shift_B)


def rolled(x_BCHW: Tensor, shift_B: Tensor) -> Tensor:
    """Each sample shifted by a distance of its own along the last axis; any axes may stand before B."""
    W = x_BCHW.shape[-1]
    column_BW = (torch.arange(W, device=shift_B.device) - shift_B[:, None]) % W  # which comes to stand in each place
    return x_BCHW.gather(-1, column_BW[:, None, None, :].expand_as(x_BCHW))
