"""The explorer of chapter 03: loader and step on a time axis, with workers that load beside the step.

The input is the time to load a batch and the time of a step. The output is an explorer with a row for the device and
one for each worker. Times are in seconds in the arguments, and in milliseconds in the picture. The rules are those of
torch's ``DataLoader`` (https://pytorch.org/docs/stable/data.html).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dltutorial.course.explorers.explorer import Explorer, around, count, slider, whole
from dltutorial.profile.timing import duration
from dltutorial.record.plots import BLUE, ORANGE

_SHOWN = 6  # the picture has room for this many batches if loading and step take turns
_DRAWN = 20 * _SHOWN  # with workers, more batches begin in the same time
_LONG_RUN = 480  # batches, of which the second half is counted


def pipeline(load_s: float, step_s: float) -> Explorer:
    """Return an explorer of loading time, step time, workers and prefetching.

    Args:
        load_s: The seconds to load a batch, at which the slider starts.
        step_s: The seconds of a step, at which the slider starts.
    """

    def draw(ax: Any, values: Any) -> str:
        visible_ms = _SHOWN * (values.load + values.step)
        batches = passages(_load_times(values.load, values.slow, _DRAWN), values.step, values.workers, values.ahead)
        for batch in batches:
            if batch.load_s < visible_ms:
                loading = (batch.load_s, batch.loaded_s - batch.load_s)
                ax.broken_barh([loading], (batch.worker + 0.65, 0.7), fc="white", ec=BLUE, hatch="///")
                ax.broken_barh([(batch.step_s, values.step)], (-0.35, 0.7), fc=ORANGE, ec="white")
        done = sum(batch.done_s <= visible_ms * (1 + 1e-9) for batch in batches)
        workers = [f"worker {n + 1}" for n in range(values.workers)] or ["loading"]
        ax.set_yticks(range(len(workers) + 1), ["device", *workers])
        ax.set(xlim=(0, visible_ms), xlabel=f"time, ms: {done} steps done (filled)")
        ax.grid(False, axis="y")
        ax.figure.subplots_adjust(left=0.14)
        return _in_words(values)

    load_ms = 1e3 * load_s
    step_ms = 1e3 * step_s
    return Explorer(
        "Loader and step",
        draw,
        load=slider("Load a batch", "What one worker needs for a batch.", load_ms, around(load_ms, 20), "ms"),
        step=slider("Step", "What the device needs for a batch.", step_ms, around(step_ms, 20), "ms"),
        workers=slider("Workers", "They load beside the step; with 0 the two take turns.", 0, whole(0, 8)),
        ahead=slider("Ahead", "Batches of a worker that may wait: prefetch_factor.", 2, whole(1, 8), "batches each"),
        slow=slider("One batch in eight", "Some take longer: a new file, a busy disk.", 1, whole(1, 10), "× slower"),
    )


def _in_words(values: Any) -> str:
    """Say how long a batch takes in the long run, and how much of the time the device works."""
    batch_ms = long_run(values.load, values.step, values.workers, values.ahead, values.slow)
    busy = f"the device works {values.step / batch_ms:.0%} of the time"
    if values.workers == 0:
        return f"In turns: a batch takes {duration(1e-3 * batch_ms)}, and {busy}."
    in_turns_ms = long_run(values.load, values.step, 0, values.ahead, values.slow)
    limit = "; loading decides" if batch_ms > 1.02 * values.step else ""
    return (
        f"{count(values.workers, 'worker')}, {values.ahead} ahead each: in the long run a batch takes "
        f"{duration(1e-3 * batch_ms)}, in turns {duration(1e-3 * in_turns_ms)}, so {in_turns_ms / batch_ms:.2f} × as "
        f"fast; {busy}{limit}."
    )


class Passage(NamedTuple):
    """The times of one batch.

    Attributes:
        worker: The number of the worker that loads it.
        load_s: When loading begins.
        loaded_s: When loading ends.
        step_s: When the step on the device begins.
        done_s: When the step ends.
    """

    worker: int
    load_s: float
    loaded_s: float
    step_s: float
    done_s: float


def passages(load_s: Sequence[float], step_s: float, workers: int, ahead: int = 2) -> list[Passage]:
    """Compute when each batch is loaded and used.

    A worker loads a batch when it is free and fewer than ``ahead`` of its batches wait. The device takes a batch when
    the batch is loaded and the previous step has ended. Without workers, loading and step take turns. As in torch's
    ``DataLoader``, the workers take the batches in turn, and the device gets them in order. The model leaves out cores:
    workers that share a core with each other or with the step are slower than this.

    Args:
        load_s: The seconds to load each batch.
        step_s: The seconds of a step.
        workers: The number of processes that load beside the step. With 0, loading and step take turns.
        ahead: How many batches of each worker may be loading or waiting, at least 1. This is torch's
            ``prefetch_factor``.
    """
    batches: list[Passage] = []
    for k, seconds in enumerate(load_s):
        idle_s = batches[-1].done_s if batches else 0.0
        if workers == 0:
            begin_s = idle_s
        else:
            free_s = batches[k - workers].loaded_s if k >= workers else 0.0
            room_s = batches[k - workers * ahead].step_s if k >= workers * ahead else 0.0
            begin_s = max(free_s, room_s)
        loaded_s = begin_s + seconds
        taken_s = max(loaded_s, idle_s)
        batches.append(Passage(k % max(1, workers), begin_s, loaded_s, taken_s, taken_s + step_s))
    return batches


def long_run(load: float, step: float, workers: int, ahead: int, slow: int) -> float:
    """Return the mean time of a batch after the start, in the unit of ``load`` and ``step``."""
    batches = passages(_load_times(load, slow, _LONG_RUN), step, workers, ahead)
    half = _LONG_RUN // 2
    return (batches[-1].done_s - batches[half - 1].done_s) / (_LONG_RUN - half)


def _load_times(load: float, slow: int, n_batches: int) -> list[float]:
    """Return loading times, of which one in eight is ``slow`` times longer.

    The slow batch has another place in each group of eight. Otherwise the same worker would have all slow batches.
    """
    times = [load] * n_batches
    for group in range(n_batches // 8 + 1):
        k = 8 * group + 3 * (1 + group) % 8
        if k < n_batches:
            times[k] = load * slow
    return times
