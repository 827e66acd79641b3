"""Loader and step on a time axis: who works when, and who waits for whom.

In: seconds to load a batch, seconds of a step, how many workers load, how many batches each may be ahead. Out: every
batch's times. Two rules make all of it: a worker loads a batch when it is free and there is room ahead; the device
takes a batch when it is there and the step before it is done. Without a worker the two take turns. As in torch's
``DataLoader``, the workers take the batches in turn, and the device gets them in order.

Left out: cores. Workers that must share a core with each other or with the step are slower than this.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dltutorial.errors import CourseError


@dataclass(frozen=True)
class Passage:
    """One batch: the worker that loaded it, when loading began and ended, when the device took it and was done."""

    worker: int
    load_s: float
    loaded_s: float
    step_s: float
    done_s: float


def passages(load_s: Sequence[float], step_s: float, workers: int, ahead: int = 2) -> list[Passage]:
    """When each batch is loaded and used.

    Args:
        load_s: seconds to load each of them.
        step_s: seconds of a step.
        workers: that load beside the step; 0: loading and step take turns.
        ahead: batches of each worker that are in the making or wait, 1 or more; torch's ``prefetch_factor``.
    """
    if min((step_s, *load_s)) < 0 or workers < 0 or ahead < 1:
        raise CourseError("times and workers cannot be negative, and a worker is at least 1 batch ahead; change them")
    found: list[Passage] = []
    for k, seconds in enumerate(load_s):
        idle_s = found[-1].done_s if found else 0.0
        if workers == 0:
            begin_s = idle_s
        else:
            free_s = found[k - workers].loaded_s if k >= workers else 0.0
            room_s = found[k - workers * ahead].step_s if k >= workers * ahead else 0.0
            begin_s = max(free_s, room_s)
        loaded_s = begin_s + seconds
        taken_s = max(loaded_s, idle_s)
        found.append(Passage(k % max(1, workers), begin_s, loaded_s, taken_s, taken_s + step_s))
    return found
