"""Loader and step on a time axis: what workers and batches read ahead hide, and what they cannot."""

from typing import Any

from dltutorial.course.explorers.explorer import Explorer, around, slider, span, whole
from dltutorial.data.pipeline import passages
from dltutorial.record.plots import BLUE, ORANGE

_SHOWN = 6  # so many batches fit into the picture when loading and step take turns
_LONG_RUN = 480  # batches; the second half is counted


def pipeline(load_s: float, step_s: float) -> Explorer:
    """Loader and step, with workers to add. The rules are those of ``data.pipeline``.

    Args:
        load_s, step_s: of one batch, each alone: where the sliders start.
    """
    load_ms, step_ms = 1e3 * load_s, 1e3 * step_s
    return Explorer(
        "Loader and step",
        _draw,
        load=slider("Load a batch", "What one worker needs for a batch.", load_ms, around(load_ms, 20), "ms"),
        step=slider("Step", "What the device needs for a batch.", step_ms, around(step_ms, 20), "ms"),
        workers=slider("Workers", "They load beside the step; with 0 the two take turns.", 0, whole(0, 8)),
        ahead=slider("Ahead", "Batches of a worker that may wait: prefetch_factor.", 2, whole(1, 8), "batches each"),
        slow=slider("One batch in eight", "Some take longer: a new file, a busy disk.", 1, whole(1, 10), "× slower"),
    )


def _draw(ax: Any, v: Any) -> str:
    window = _SHOWN * (v.load + v.step)
    seen = passages(_loads(v.load, v.slow, 20 * _SHOWN), v.step, v.workers, v.ahead)
    seen = [passage for passage in seen if passage.load_s < window]
    for worker in range(max(1, v.workers)):
        loads = [(passage.load_s, passage.loaded_s - passage.load_s) for passage in seen if passage.worker == worker]
        ax.broken_barh(loads, (worker + 0.65, 0.7), fc="white", ec=BLUE, hatch="///")
    steps = [(passage.step_s, passage.done_s - passage.step_s) for passage in seen]
    ax.broken_barh(steps, (-0.35, 0.7), fc=ORANGE, ec="white")
    done = sum(passage.done_s <= window * (1 + 1e-9) for passage in seen)
    names = [f"worker {n + 1}" for n in range(v.workers)] or ["loading"]
    ax.set_yticks(range(len(names) + 1), ["device", *names])
    ax.set(xlim=(0, window), xlabel=f"time, ms: {done} steps done (filled)")
    ax.grid(False, axis="y")
    ax.figure.subplots_adjust(left=0.14)
    each, turns = (long_run(v.load, v.step, workers, v.ahead, v.slow) for workers in (v.workers, 0))
    busy = f"the device works {v.step / each:.0%} of the time"
    if v.workers == 0:
        return f"In turns: a batch takes {span(1e-3 * each)}, and {busy}."
    return (
        f"{v.workers} worker{'s' * (v.workers > 1)}, {v.ahead} ahead each: in the long run a batch takes "
        f"{span(1e-3 * each)}, in turns {span(1e-3 * turns)}, so {turns / each:.2f} × as fast; {busy}"
        f"{'; loading decides' if each > 1.02 * v.step else ''}."
    )


def long_run(load: float, step: float, workers: int, ahead: int, slow: int) -> float:
    """Time of a batch once the start is over, slow batches among the others."""
    seen = passages(_loads(load, slow, _LONG_RUN), step, workers, ahead)
    return (seen[-1].done_s - seen[_LONG_RUN // 2 - 1].done_s) / (_LONG_RUN - _LONG_RUN // 2)


def _loads(load: float, slow: int, batches: int) -> list[float]:
    """One in eight is slow: the fourth, then another of each eight, as otherwise the same worker had them all."""
    places = (divmod(k, 8) for k in range(batches))
    return [load * (slow if place == 3 * (1 + eight) % 8 else 1) for eight, place in places]
