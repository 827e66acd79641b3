"""A step of many small operations: when starting them decides, and what recording the step gains."""

from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, around, choice, geometric, slider, span, whole
from dltutorial.course.show import number
from dltutorial.record.plots import BLUE, GREY, ORANGE

_WORK_N = np.geomspace(0.01, 1000, 61)  # microseconds of work in one operation
_DEVICES = (("GPU: works while the next is started", True), ("CPU: starts and works in turn", False))


def launches(operations: int, eager_s: float, replayed_s: float) -> Explorer:
    """Eager and replayed steps, and the work in an operation to move.

    Args:
        operations: in the step.
        eager_s, replayed_s: what starting one operation costs, either way.
    """
    least, most = min(10, operations), max(100_000, operations)
    eager_us, replayed_us = 1e6 * eager_s, 1e6 * replayed_s
    return Explorer(
        "Eager and replayed steps",
        _draw,
        work=slider("Work in an operation", "For the device, once it is started.", 0.1, geometric(0.01, 1000), "µs"),
        n=slider("Operations in a step", "Forward, backward and update together.", operations, whole(least, most)),
        eager=slider("Start one, eager", "Python, autograd, the launch.", eager_us, around(eager_us, 20), "µs"),
        replayed=slider("Start one, replayed", "What recording leaves.", replayed_us, around(replayed_us, 20), "µs"),
        beside=choice("Device", "Whether starting goes on beside the work.", _DEVICES, True),
    )


def _draw(ax: Any, v: Any) -> str:
    eager, replayed = (step_us(v.n, start, v.work, v.beside) for start in (v.eager, v.replayed))
    for name, colour, style, mark in (("eager", BLUE, "-", "D"), ("replayed", ORANGE, "--", "s")):
        start, look = getattr(v, name), {"color": colour, "label": f"{name}: {number(getattr(v, name))} µs each"}
        ax.plot(_WORK_N, step_us(v.n, start, _WORK_N, v.beside) / 1e3, style, **look)
        ax.plot(v.work, step_us(v.n, start, v.work, v.beside) / 1e3, mark, color=colour)
    ax.plot(_WORK_N, v.n * _WORK_N / 1e3, ":", color=GREY, label="the work alone")
    ax.set(xscale="log", yscale="log", xlabel="work in an operation, µs", ylabel="step, ms")
    ax.legend()
    return (
        f"{v.n:,} operations with {number(v.work)} µs of work each: eager {span(1e-6 * eager)}, replayed "
        f"{span(1e-6 * replayed)}, {eager / replayed:.2f} × as fast. The work alone takes {span(1e-6 * v.n * v.work)}, "
        f"{v.n * v.work / eager:.0%} of the eager step."
    )


def step_us(operations: int, start_us: float, work_us: Any, beside: bool) -> Any:
    """Microseconds until the last operation is done; ``beside``: the longer of start and work counts, else the sum."""
    if not beside:
        return operations * (start_us + work_us)
    return operations * np.maximum(start_us, work_us) + np.minimum(start_us, work_us)
