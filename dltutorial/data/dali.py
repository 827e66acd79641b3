"""The same batches through NVIDIA DALI, where it is installed: reading in its threads, the rest in its graph.

In: a split, a batch size, a device. Out: batches (x_BCHW, y_BCHW) for ever, equal to those of ``ladder``. DALI reads
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
    split: Split,
    batch_size: int,
    *,
    seed: int = 0,
    roll: bool = False,
    device: str | torch.device = "cpu",
    rank: int = 0,
    world_size: int = 1,
    skip: int = 0,
    ahead: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """As ``ladder.make_loader``, with ``ahead`` batches in DALI's queue.

    Raises:
        CourseError: DALI is not installed.
        DataError, RecipeError: as ``ladder.make_loader``.
    """
    pairs, device = Pairs(split), torch.device(device)
    width = split.shape[-1] if roll else 0
    draws = sampling.endless(
        len(pairs), batch_size, seed=seed, width=width, rank=rank, world_size=world_size, skip=skip
    )
    size = -(-(batch_size - rank) // world_size)
    pipe = _pipeline(_reader(pairs, draws), split, size, device, ahead)
    return _batches(pipe, device)


def _reader(pairs: Pairs, draws: Iterator) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """What DALI is fed with: for each batch the raw pairs, and by how much each is to be shifted."""
    for indices, shifts in draws:
        places = (pairs.where(index) for index in indices)
        yield (
            [pairs.year(year).snapshots(first, 2) for year, first in places],
            [np.array([shift], np.int32) for shift in shifts],
        )


def _pipeline(source: Iterator, split: Split, size: int, device: torch.device, ahead: int) -> Any:
    """The graph: feed, normalise, shift."""
    fn, types, pipeline_def = _nvidia()
    gpu = device.type == "cuda"
    width = split.shape[-1]

    @pipeline_def(batch_size=size, num_threads=1, device_id=(device.index or 0) if gpu else None)
    def graph():
        raw, shift = fn.external_source(source=source, num_outputs=2, dtype=[types.FLOAT, types.INT32])
        x = raw.gpu() if gpu else raw
        means, stds = (types.Constant(s, device="gpu" if gpu else "cpu") for s in (split.means_1C11, split.stds_1C11))
        x = (x - means) / stds
        right = fn.slice(x, start=width - shift, end=[width], axes=[3])
        left = fn.slice(x, start=[0], end=width - shift, axes=[3])
        return fn.cat(right, left, axis=3)

    pipe = graph(prefetch_queue_depth=ahead)
    pipe.build()
    return pipe


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
    """DALI's operators, types, and pipeline decorator.

    Raises:
        CourseError: it is not installed, or does not load.
    """
    try:
        from nvidia.dali import fn, pipeline_def, types
    except (ImportError, OSError) as error:
        raise CourseError(MISSING) from error
    return fn, types, pipeline_def
