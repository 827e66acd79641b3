"""Checks of chapter 02's exercise: name the bottleneck of a run from the breakdown of its step.

The traces are simulated (``simulated``) from times that the learner does not see; what is right follows from
those times, and each case says why. Every case tries several seeds, so that no answer can know the numbers by heart.
"""

from collections.abc import Callable
from dataclasses import replace

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect
from dltutorial.course.checks.simulated import SimulatedRun
from dltutorial.profile.events import Trace
from dltutorial.profile.trace_breakdown import StepBreakdown

NAMES = ("loading", "synchronisation", "launches", "device")
_MS, _US = 1e-3, 1e-6
_MYSTERIES = (
    SimulatedRun(kernels=540, kernel_s=2.5 * _US, launch_s=9 * _US, prefetch=2),
    SimulatedRun(load_s=7 * _MS, kernels=90, kernel_s=40 * _US),
    SimulatedRun(load_s=4 * _MS, kernels=60, kernel_s=120 * _US, synchronise_steps=False),
)


def mystery(number: int) -> Trace:
    """One of the three mystery traces of the notebook, 1 to 3. Simulated."""
    return _MYSTERIES[number - 1].trace(seed=number)


def _right(breakdown: StepBreakdown) -> str:
    """The device, if it is busy; else the part of the host's time that is longest."""
    if breakdown.device_s >= 0.75 * breakdown.step_s:
        return "device"
    parts = {"loading": breakdown.wait_s, "synchronisation": breakdown.synchronise_s, "launches": breakdown.launch_s}
    return max(parts, key=parts.__getitem__)


def _compare(fn: Callable, run: SimulatedRun, why: str) -> None:
    """The right name; a wrong one gets the reason that its own mistake calls for."""
    for seed in (11, 12, 13):
        breakdown = StepBreakdown.of(replace(run, steps=4 + seed % 3).trace(seed))
        got, expected = fn(breakdown), _right(breakdown)
        if not isinstance(got, str) or got not in NAMES:
            raise Wrong(expected, got, f"Return one of the four names: {', '.join(NAMES)}.")
        expect(got, expected, hint=why)


_CASES = (
    case(
        "a slow loader in the training thread",
        _compare,
        SimulatedRun(load_s=15 * _MS),
        "The host waits for its batch most of the time, and the device idles meanwhile.",
    ),
    case(
        "a slow loader in another thread: the step still waits for it",
        _compare,
        SimulatedRun(load_s=15 * _MS, prefetch=2),
        "Another thread loads, and the step waits for it all the same: wait_s says so.",
    ),
    case(
        "many short kernels",
        _compare,
        SimulatedRun(kernels=450, kernel_s=3 * _US, load_s=0.3 * _MS),
        "The host launches all the time and the device waits for the next launch.",
    ),
    case(
        "a synchronising call after every kernel",
        _compare,
        SimulatedRun(kernels=450, kernel_s=11 * _US, synchronise_every=1, load_s=0.3 * _MS),
        "The host waits for the device after each kernel, and then the device for the host: it is busy for half of the "
        "step, not for three quarters.",
    ),
    case(
        "a device that is busy for half of the step",
        _compare,
        SimulatedRun(kernels=450, kernel_s=9.5 * _US, load_s=3.85 * _MS),
        "The device works longer than the host waits for data, and yet it idles for almost half of the step: it is "
        "the bottleneck only if it is busy for three quarters. Compare the host's three parts with each other.",
    ),
    case(
        "a busy device, and one long wait for it at the end of the step",
        _compare,
        SimulatedRun(load_s=0.3 * _MS, kernel_s=200 * _US),
        "The host waits long, but the device works all that time: the wait costs nothing. Look at device_s first.",
    ),
    case(
        "a busy device, and a slow loader that hides behind it",
        _compare,
        SimulatedRun(load_s=5 * _MS, kernel_s=120 * _US, synchronise_steps=False),
        "The host waits for data while the device still has a queue to work on. Look at device_s first.",
    ),
    case(
        "many kernels, each long enough",
        _compare,
        SimulatedRun(kernels=450, kernel_s=60 * _US, load_s=0.3 * _MS),
        "Many launches are no harm while the device is busy. Look at device_s, not at the number of kernels.",
    ),
)
_HINTS = (
    "Is the device busy for at least three quarters of the step? Then nothing else matters.",
    "Else the host holds it up, with the longest of its three parts: wait_s, synchronise_s, launch_s.",
    "Put the three parts in a dictionary, name → seconds, and take max(parts, key=parts.get).",
)
EXERCISE = Exercise(name="bottleneck", chapter="02", cases=_CASES, hints=_HINTS)
