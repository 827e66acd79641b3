"""The same batches through NVIDIA DALI, where it is installed: reading in its threads, the rest in its graph.

In: a split, a batch size, a device. Out: batches (x_BCHW, y_BCHW) for ever, equal to those of ``loaders``. DALI reads
ahead by itself and, on a GPU, normalises and shifts there. It is large, so it is no dependency of the course:
``pip install nvidia-dali-cuda130`` (or cuda120); its CPU half works without a GPU.

Source: https://docs.nvidia.com/deeplearning/dali/user-guide/docs/ (external source, arithmetic, slice, cat).
Legend: B samples, 2 states (now, next), C channels, H × W grid points.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dltutorial.data import sampling
from dltutorial.data.loaders import Pairs
from dltutorial.data.store import Split
from dltutorial.errors import CourseError

MISSING = "NVIDIA DALI is not installed; pip install nvidia-dali-cuda130, or go on without it"


def available() -> bool:
    """Whether DALI can be imported."""
    try:
        _nvidia()
    except CourseError:
        return False
    return True


def dali_loader(
    split: Split, batch_size: int, *, roll: bool = False, device: str | torch.device = "cpu", **place: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """As ``loaders.make_loader``; ``place`` are seed, rank, world_size and skip.

    Raises:
        CourseError: DALI is not installed.
        DataError, RecipeError: as ``make_loader``.
    """
    fn, types, pipeline_def = _nvidia()
    pairs, device, width = Pairs(split), torch.device(device), split.shape[-1]
    draws = sampling.endless(len(pairs), batch_size, width=width if roll else 0, **place)
    size = -(-(batch_size - place.get("rank", 0)) // place.get("world_size", 1))
    where, number = ("gpu", device.index or 0) if device.type == "cuda" else ("cpu", None)

    def raw_batches() -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
        for indices, shifts in draws:
            places = (pairs.where(index) for index in indices)
            raw = [pairs.year(year).snapshots(first, 2) for year, first in places]
            yield raw, [np.array([shift], np.int32) for shift in shifts]

    @pipeline_def(batch_size=size, num_threads=1, device_id=number)
    def graph() -> Any:
        raw, shift = fn.external_source(source=raw_batches(), num_outputs=2, dtype=[types.FLOAT, types.INT32])
        means, stds = (types.Constant(s, device=where) for s in (split.means_1C11, split.stds_1C11))
        x = ((raw.gpu() if where == "gpu" else raw) - means) / stds
        right = fn.slice(x, start=width - shift, end=[width], axes=[3])
        left = fn.slice(x, start=[0], end=width - shift, axes=[3])
        return fn.cat(right, left, axis=3)

    pipe = graph(prefetch_queue_depth=2)
    pipe.build()
    return _batches(pipe, device)


def _batches(pipe: Any, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    while True:
        (both,) = pipe.run()
        # DALI writes its next batches to the same memory, so what is handed out is a copy. On a GPU it is made in a
        # stream of its own, and waited for: in the step's stream it would queue behind the step, for too long.
        with torch.cuda.stream(stream):  # None: nothing changes
            both_B2CHW = torch.from_dlpack(both.as_tensor()).to(device, copy=True)
        if stream is not None:
            stream.synchronize()
            both_B2CHW.record_stream(torch.cuda.current_stream(device))
        yield both_B2CHW[:, 0], both_B2CHW[:, 1]


def _nvidia() -> tuple[Any, Any, Any]:
    """DALI's operators, types, and pipeline decorator."""
    try:
        from nvidia.dali import fn, pipeline_def, types
    except (ImportError, OSError) as error:
        raise CourseError(MISSING) from error
    return fn, types, pipeline_def
