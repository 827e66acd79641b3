"""The explorer of chapter 03: loader and step on a time axis, with workers that load beside the step.

The input is the time to load a batch and the time of a step. The output is an explorer with a row for the device and
one for each worker. Times are in seconds in the arguments, and in milliseconds in the picture. The rules are those of
torch's ``DataLoader`` (https://pytorch.org/docs/stable/data.html).
"""

from typing import Any, NamedTuple

from dltutorial.course.explorers.explorer import Explorer, int_slider, log_slider
from dltutorial.profile.timing import duration
from dltutorial.record.plots import BLUE, ORANGE

N_BATCHES = 480  # the second half counts for the mean


class Times(NamedTuple):
    """When a batch is loaded (by ``worker``), and when the step that uses it begins and ends."""

    worker: int
    load: float
    loaded: float
    step: float
    done: float


def simulate(load: float, step: float, workers: int, ahead: int = 2, slow: int = 1) -> list[Times]:
    """Compute when each batch is loaded and used, in the unit of ``load`` and ``step``.

    A worker loads a batch when it is free and fewer than ``ahead`` of its batches wait. The device gets the batches in
    order. Without workers, loading and step take turns. Workers that share a core are slower than this model.

    Args:
        load: The time to load a batch.
        step: The time of a step.
        workers: The number of processes that load beside the step.
        ahead: How many batches of each worker may be loading or waiting. This is torch's ``prefetch_factor``.
        slow: One batch in eight takes this many times longer to load. Its place in each group of eight changes, so
            that not always the same worker has it.
    """
    batches: list[Times] = []
    for k in range(N_BATCHES):
        is_slow = k % 8 == 3 * (1 + k // 8) % 8
        load_time = load * slow if is_slow else load
        idle = batches[-1].done if batches else 0.0
        begin = idle if workers == 0 else 0.0
        if workers > 0 and k >= workers:
            begin = batches[k - workers].loaded
        if workers > 0 and k >= workers * ahead:
            begin = max(begin, batches[k - workers * ahead].step)
        loaded = begin + load_time
        begin_step = max(loaded, idle)
        batches.append(Times(k % max(1, workers), begin, loaded, begin_step, begin_step + step))
    return batches


def mean_time(batches: list[Times]) -> float:
    """Return the mean time of a batch after the start."""
    half = N_BATCHES // 2
    return (batches[-1].done - batches[half - 1].done) / (N_BATCHES - half)


def pipeline(load_s: float, step_s: float) -> Explorer:
    """Return an explorer of loading time, step time, workers and prefetching, which start at these seconds."""

    def draw(ax: Any, load: float, step: float, workers: int, ahead: int, slow: int) -> str:
        visible_ms = 6 * (load + step)
        batches = simulate(load, step, workers, ahead, slow)
        visible = [batch for batch in batches if batch.load < visible_ms]
        for batch in visible:
            ax.broken_barh([(batch.load, batch.loaded - batch.load)], (batch.worker + 0.65, 0.7), fc="none", ec=BLUE)
        ax.broken_barh([(batch.step, step) for batch in visible], (-0.35, 0.7), fc=ORANGE, ec="white")
        rows = [f"worker {n + 1}" for n in range(workers)] or ["loading"]
        ax.set_yticks(range(len(rows) + 1), ["device", *rows])
        ax.set(xlim=(0, visible_ms), xlabel="time, ms (filled: steps)")
        ax.grid(False, axis="y")
        batch_ms = mean_time(batches)
        in_turns_ms = mean_time(simulate(load, step, 0, ahead, slow))
        return (
            f"{workers} workers, {ahead} batches ahead each: a batch takes {duration(1e-3 * batch_ms)} on average, "
            f"and the device works {step / batch_ms:.0%} of the time. Without workers, loading and step take turns, "
            f"and a batch takes {duration(1e-3 * in_turns_ms)}."
        )

    return Explorer(
        draw,
        load=log_slider("Load a batch [ms]", 1e3 * load_s, 50 * load_s, 2e4 * load_s),
        step=log_slider("Step [ms]", 1e3 * step_s, 50 * step_s, 2e4 * step_s),
        workers=int_slider("Workers", 0, 0, 8),
        ahead=int_slider("Batches ahead of a worker", 2, 1, 8),
        slow=int_slider("One batch in eight [× slower]", 1, 1, 10),
    )
