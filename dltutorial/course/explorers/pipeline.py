"""Loader and step on a time axis: what workers and batches read ahead hide, and what they cannot.

In: seconds to load a batch and seconds of a step, as measured. Out: the first batches as bars, one lane for each worker
and one for the device, with the time of a batch in the long run. The rules are those of ``data.pipeline``.
"""

from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Drawing, Explorer, Slider, around
from dltutorial.course.explorers.words import span
from dltutorial.course.guess import positive
from dltutorial.data.pipeline import Passage, batch_s, passages

_SHOWN = 6  # so many batches fit into the picture when loading and step take turns
_LONG_RUN = 480  # batches; the second half is counted
_SLOW_EVERY = 8  # batches, of which one is slow


def pipeline(load_s: float, step_s: float) -> None:
    """Show loader and step beside each other; arguments as of :func:`make`."""
    make(load_s, step_s).explore()


def make(load_s: float, step_s: float) -> Explorer:
    """Loader and step, with workers to add.

    Args:
        load_s, step_s: of one batch, each alone: where the sliders start.

    Raises:
        CourseError: a time that is not positive.
    """
    load_ms, step_ms = 1e3 * positive(load_s, "load_s"), 1e3 * positive(step_s, "step_s")
    controls = [
        Slider("load_ms", "Load a batch", **around(load_ms, 20), unit="ms", help="What one worker needs for a batch."),
        Slider("step_ms", "Step", **around(step_ms, 20), unit="ms", help="What the device needs for a batch."),
        Slider("workers", "Workers", value=0, low=0, high=8, integer=True,
               help="Threads or processes that load beside the step; with 0, loading and step take turns."),
        Slider("ahead", "Ahead", value=2, low=1, high=8, integer=True, unit="batches each",
               help="How many batches of a worker may be in the making or wait; torch calls it prefetch_factor."),
        Slider("slow", "One batch in eight", value=1, low=1, high=10, integer=True, unit="× slower",
               help="Some batches take longer: a new file, a busy disk."),
    ]  # fmt: skip
    return Explorer("Loader and step", controls, _draw)


def example() -> Explorer:
    """A loader that needs 50 ms beside a step of 30 ms."""
    return make(0.05, 0.03)


def long_run_s(load_s: float, step_s: float, workers: int, ahead: int, slow: int) -> float:
    """Seconds of a batch once the start is over, slow batches among the others."""
    seen = passages(_loads(load_s, slow, _LONG_RUN), step_s, workers, ahead)
    return (seen[-1].done_s - seen[_LONG_RUN // 2 - 1].done_s) / (_LONG_RUN - _LONG_RUN // 2)


def _loads(load_s: float, slow: int, batches: int) -> list[float]:
    """One in eight is slow: the fourth, then another of each eight, as otherwise the same worker had them all."""
    places = (divmod(k, _SLOW_EVERY) for k in range(batches))
    return [load_s * (slow if place == 3 * (1 + eight) % _SLOW_EVERY else 1) for eight, place in places]


def _draw(load_ms: float, step_ms: float, workers: int, ahead: int, slow: int) -> Drawing:
    load_s, step_s = load_ms / 1e3, step_ms / 1e3
    window_s = _SHOWN * batch_s(load_s, step_s, 0)
    seen = passages(_loads(load_s, slow, 20 * _SHOWN), step_s, workers, ahead)
    each_s, turns_s = (long_run_s(load_s, step_s, n, ahead, slow) for n in (workers, 0))
    return Drawing(_words(each_s, turns_s, step_s, workers, ahead), _picture(seen, window_s, workers))


def _words(each_s: float, turns_s: float, step_s: float, workers: int, ahead: int) -> str:
    busy = f"the device works {step_s / each_s:.0%} of the time"
    if workers == 0:
        return f"In turns: a batch takes {span(each_s)}, and {busy}."
    them = "1 worker" if workers == 1 else f"{workers} workers"
    if each_s > 1.02 * step_s:
        busy += "; loading decides"
    return (
        f"{them}, {ahead} ahead each: in the long run a batch takes {span(each_s)}, in turns {span(turns_s)}, so "
        f"{turns_s / each_s:.2f} × as fast; {busy}."
    )


def _picture(seen: list[Passage], window_s: float, workers: int) -> list[str]:
    """A lane for each worker, the device's below; what is empty in a lane is waiting."""
    lanes = max(1, workers) + 1
    names = {lanes - 0.5 - n: f"worker {n + 1}" if workers else "loading" for n in range(lanes - 1)} | {0.5: "device"}
    unit, per_s = ("ms", 1e3) if window_s < 5 else ("s", 1.0)
    axes = svg.Axes(
        (0, window_s * per_s), (0, lanes), labels=(f"time, {unit}", ""), ticks_y=names, margins=(76, 16, 34, 48)
    )
    high = 0.7 * (axes.bottom - axes.top) / lanes

    def box(start_s: float, end_s: float, lane: float, colour: str, fill: str) -> str:
        left, right = axes.x(start_s * per_s), axes.x(end_s * per_s)
        return svg.bar(left, axes.y(lane) - high / 2, right - left, high, colour, fill)

    bars = []
    for each in seen:
        if each.load_s < window_s:
            bars.append(box(each.load_s, each.loaded_s, lanes - 0.5 - each.worker, svg.BLUE, "striped"))
        if each.step_s < window_s:
            bars.append(box(each.step_s, each.done_s, 0.5, svg.RED, "solid"))
    key = [(svg.bar(-10, -6, 20, 12, svg.BLUE, "striped"), "load"), (svg.bar(-10, -6, 20, 12, svg.RED), "step")]
    labels = [part for n, entry in enumerate(key) for part in svg.legend([entry], axes.left + 14 + 90 * n, 16)]
    done = sum(each.done_s <= window_s * (1 + 1e-9) for each in seen)
    told = svg.text(axes.right, 21, f"{done} steps done", anchor="end", bold=True)
    return [*axes.frame(), *bars, *labels, told]
