"""A step of many small operations: when starting them decides, and what recording the step gains.

In: operations in a step, what starting one costs eagerly and replayed, as measured. Out: the time of both kinds of step
against the work in an operation, and the gain at the one that is chosen. The rule is that of ``training.launch_model``.
"""

from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Choice, Drawing, Explorer, Slider, around
from dltutorial.course.explorers.words import span
from dltutorial.course.guess import positive
from dltutorial.course.show import number
from dltutorial.train.launch_model import step_s

_WORK_US = (0.01, 1000.0)  # of one operation; the axis
_DEVICES = {"GPU: works while the next is started": True, "CPU: starts and works in turn": False}


def launches(operations: int, eager_s: float, replayed_s: float) -> None:
    """Show eager and replayed steps against the work in an operation; arguments as of :func:`make`."""
    make(operations, eager_s, replayed_s).explore()


def make(operations: int, eager_s: float, replayed_s: float) -> Explorer:
    """Both kinds of step, and the work in an operation to move.

    Args:
        operations: in the step.
        eager_s, replayed_s: what starting one operation costs, either way.

    Raises:
        CourseError: a number that is not positive.
    """
    eager_us, replayed_us = 1e6 * positive(eager_s, "eager_s"), 1e6 * positive(replayed_s, "replayed_s")
    counted = round(positive(operations, "operations"))
    controls = [
        Slider("work_us", "Work in an operation", value=0.1, low=_WORK_US[0], high=_WORK_US[1], log=True, unit="µs",
               help="What the device needs to compute one, once it was started."),
        Slider("operations", "Operations in a step", value=counted, low=min(10, counted), high=max(100_000, counted),
               log=True, integer=True, help="Forward, backward and update together."),
        Slider("eager_us", "Start one, eager", **around(eager_us, 20), unit="µs",
               help="Python, autograd and the launch itself."),
        Slider("replayed_us", "Start one, replayed", **around(replayed_us, 20), unit="µs",
               help="What is left when the step was recorded before."),
        Choice("device", "Device", tuple(_DEVICES), value=next(iter(_DEVICES)),
               help="Whether starting goes on beside the work."),
    ]  # fmt: skip
    return Explorer("Eager and replayed steps", controls, _draw)


def example() -> Explorer:
    """A step of 400 operations that cost 7 µs to start, 2.5 µs when they are replayed."""
    return make(400, 7e-6, 2.5e-6)


def _draw(work_us: float, operations: int, eager_us: float, replayed_us: float, device: str) -> Drawing:
    beside = _DEVICES[device]
    eager_s, replayed_s = (step_s(operations, start / 1e6, work_us / 1e6, beside) for start in (eager_us, replayed_us))
    work_s = operations * work_us / 1e6
    words = (
        f"{operations:,} operations with {number(work_us)} µs of work each: eager {span(eager_s)}, replayed "
        f"{span(replayed_s)}, {eager_s / replayed_s:.2f} × as fast. The work alone takes {span(work_s)}, "
        f"{work_s / eager_s:.0%} of the eager step."
    )
    return Drawing(words, _picture(work_us, operations, {"eager": eager_us, "replayed": replayed_us}, beside))


def _picture(work_us: float, operations: int, starts_us: dict[str, float], beside: bool) -> list[str]:
    """Step times against the work in an operation, the work alone, and the chosen point on both lines."""

    def step_ms(start_us: float, work_us: float) -> float:
        return 1e3 * step_s(operations, start_us / 1e6, work_us / 1e6, beside)

    low, high = _WORK_US
    works = [low * (high / low) ** (n / 60) for n in range(61)]
    lowest = min(step_ms(start, low) for start in starts_us.values())
    highest = max(step_ms(start, high) for start in starts_us.values())
    axes = svg.Axes(
        _WORK_US, (lowest / 4, 2 * highest), log_x=True, log_y=True, labels=("work in an operation, µs", "step, ms")
    )
    parts = [*axes.frame(), axes.curve([(work, operations * work / 1e3) for work in works], svg.GREY, svg.DOTTED)]
    for (name, start_us), colour, dash in zip(
        starts_us.items(), (svg.RED, svg.BLUE), (svg.SOLID, svg.DASHED), strict=True
    ):
        parts.append(axes.curve([(work, step_ms(start_us, work)) for work in works], colour, dash))
        above = start_us == max(starts_us.values())
        at = axes.y(step_ms(start_us, low)) + (-8 if above else 20)
        parts.append(svg.text(axes.left + 8, at, f"{name}: {number(start_us)} µs each", bold=True))
        parts.append(svg.diamond(axes.x(work_us), axes.y(step_ms(start_us, work_us)), colour, filled=name == "eager"))
    parts.append(axes.upright(work_us, svg.GREY))
    key = (svg.line([(-12, 0), (12, 0)], svg.GREY, svg.DOTTED), "the work alone")
    return [*parts, *svg.legend([key], axes.left + 20, axes.top + 10)]
