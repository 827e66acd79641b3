"""Checks of the exercise of chapter 02: name the bottleneck of a step from its parts.

``mystery`` runs one of three loops on this machine and returns its trace. Each loop is slow for another reason. The
cases of the check need no trace. They are breakdowns of a step with invented numbers, on a CPU and beside a GPU.
"""

import itertools
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from dltutorial import machine
from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect
from dltutorial.profile import trace
from dltutorial.profile.events import Trace
from dltutorial.profile.trace_breakdown import StepBreakdown

NAMES = ("loading", "waiting", "calling", "computing")
_WIDTHS = {1: 16, 2: 64, 3: 1024}


def mystery(number: int) -> Trace:
    """Record one of the three mystery traces of the notebook, 1 to 3, on this machine."""
    width, device = _WIDTHS[number], machine.device()
    layers = [nn.Linear(width, width), nn.ReLU()] * (40 if number == 1 else 2)
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    count = itertools.count()

    def step() -> None:
        with record_function("load"):
            values = np.random.default_rng(next(count)).standard_normal((width, width))  # slow in loop 3
            x_BD = torch.from_numpy(values).float().to(device)
        loss = model(x_BD if number != 1 else x_BD[:1]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == 2:
            with record_function("log"):  # start another program in every step
                subprocess.check_output([sys.executable, "-c", "import os; print(os.getloadavg())"])

    return trace.take(step, steps=4)


def _right(breakdown: StepBreakdown) -> str:
    """Return "computing" if it takes three quarters of the step, and otherwise the longest of the other parts."""
    if breakdown.product_s + breakdown.other_s >= 0.75 * breakdown.step_s:
        return "computing"
    parts = {
        "loading": breakdown.wait_s,
        "waiting": breakdown.synchronise_s + breakdown.gap_s,
        "calling": breakdown.launch_s,
    }
    return max(parts, key=parts.__getitem__)


def _compare(
    fn: Callable,
    device: bool,
    why: str,
    *,
    wait: float = 0.5,
    synchronise: float = 0.0,
    gap: float = 0.0,
    launch: float = 1.0,
    product: float = 0.0,
    other: float = 0.0,
) -> None:
    """Compare the answer for a step with these parts, in any unit. A wrong answer gets the hint ``why``.

    Beside a GPU, the step takes as long as the slower of host and GPU. On a CPU, it takes the sum of all parts.
    """
    for seed in range(3):
        unit_s = 2.0 ** random.Random(seed).randint(-12, -6)  # a power of two changes no share
        host, work = wait + synchronise + gap + launch, product + other
        breakdown = StepBreakdown(
            step_s=unit_s * (max(host, work) if device else host + work),
            wait_s=unit_s * wait,
            read_s=0.0,
            prepare_s=0.0,
            synchronise_s=unit_s * synchronise,
            n_synchronise=2.0 + seed,
            gap_s=unit_s * gap,
            gap_where="in log" if gap else "",
            launch_s=unit_s * launch,
            n_calls=200.0 + 100 * seed,
            device_s=unit_s * work if device else None,
            product_s=unit_s * product,
            other_s=unit_s * other,
        )
        got, expected = fn(breakdown), _right(breakdown)
        if not isinstance(got, str) or got not in NAMES:
            raise Wrong(expected, got, f"Return one of the four names: {', '.join(NAMES)}.")
        expect(got, expected, hint=why)


_WAITS = "Most of the step is a wait for the batch, so look at wait_s."
_BOTH_WAITS = (
    "The loop waits for the device and for something else: synchronise_s and gap_s together are the longest part."
)
_IDLE = "Computing takes less than three quarters of this step. Compare the other three parts."
_BUSY = "Computing takes three quarters of the step or more. Whatever the host does, look at that first."
_ALL_WORK = (
    "Computing is the sum of product_s and other_s. Here the sum takes three quarters of the step or more, "
    "so look at that first."
)
_CALLS = "Calling operators takes most of the time, so look at launch_s."
_LAUNCHES = "The host launches kernels all the time, so look at launch_s."

_CASES = (
    case("a slow loader on a CPU", _compare, False, _WAITS, wait=15, launch=2, product=3, other=1),
    case("a slow loader beside a GPU", _compare, True, _WAITS, wait=15, launch=2, product=3, other=1),
    case("many short operators", _compare, False, _CALLS, launch=9, other=2),
    case("many short kernels", _compare, True, _LAUNCHES, launch=9, product=1, other=2),
    case("a program that is started in every step", _compare, False, _BOTH_WAITS, gap=8, launch=2, product=4),
    case("two kinds of waiting", _compare, True, _BOTH_WAITS, wait=4, synchronise=3, gap=3, launch=4, product=5),
    case("matrix products and much else", _compare, False, _ALL_WORK, wait=6, launch=6, product=48, other=40),
    case("a GPU that is busy for 55% of the step", _compare, True, _IDLE, wait=4, synchronise=3, launch=3, product=5.5),
    case("a GPU that is busy for 73%", _compare, True, _IDLE, wait=45, synchronise=25, launch=30, product=73),
    case("operators that take 74%", _compare, False, _IDLE, wait=8, launch=18, product=50, other=24),
    case("exactly three quarters", _compare, True, _BUSY, wait=2, synchronise=1, launch=1, product=2, other=1),
    case("a GPU that is busy for 77%", _compare, True, _BUSY, wait=45, synchronise=25, launch=30, product=77),
    case("a busy GPU, and a long wait for it", _compare, True, _BUSY, synchronise=10, product=9, other=3),
    case("a slow loader beside a busy GPU", _compare, True, _BUSY, wait=9, launch=2, product=11, other=1),
)
_HINTS = (
    "Which attributes say how long the step computes? Which attributes say how long it does something else?",
    "What is the answer if computing takes 74% of the step, and what if it takes 76%?",
    "Each of the four names has one number. Two of these numbers are a sum of two attributes.",
)
EXERCISE = Exercise(name="bottleneck", chapter="02", cases=_CASES, hints=_HINTS)
