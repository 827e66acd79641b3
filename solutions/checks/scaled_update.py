"""Checks of chapter 04's exercise: one update with dynamic loss scaling.

Each case calls the learner's function with a loss whose gradients are chosen by the case: ordinary numbers, inf or NaN.
The expected result is that of torch's own ``GradScaler``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect, expect_close

INTERVAL = 3  # good updates until the scale doubles, in all cases but one
_SKIP = "If a gradient is inf or NaN, skip the update: do not call optimizer.step()."


class _Lab:
    """Two weights, a third that does not influence the loss, an optimizer with momentum, and the state."""

    def __init__(self, scale: float = 8.0, good_steps: int = 0):
        self.weights = [torch.nn.Parameter(torch.tensor([1.0, -2.0])), torch.nn.Parameter(torch.tensor([[0.5]]))]
        unused = torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([*self.weights, unused], lr=0.25, momentum=0.5)
        self.scale, self.good_steps = scale, good_steps

    def loss(self, slopes: Sequence[float]) -> torch.Tensor:
        """Return a loss with the gradient ``slopes``: two numbers for the first weight, one for the second."""
        return slopes[0] * self.weights[0][0] + slopes[1] * self.weights[0][1] + slopes[2] * self.weights[1].sum()

    def update(self, fn: Callable, slopes: Sequence[float]) -> Any:
        """Make one update with the learner's function, and store the state that it returns."""
        got = fn(self.loss(slopes), self.optimizer, self.scale, self.good_steps, INTERVAL)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong(
                "a tuple (scale, good_steps)", got, "" if got is None else "Return both numbers: scale, good_steps."
            )
        self.scale, self.good_steps = got
        return got

    def values(self) -> torch.Tensor:
        """Return all weights as one vector."""
        return torch.cat([w.detach().flatten() for w in self.weights])


def _reference(loss: torch.Tensor, optimizer: Any, scale: float, good_steps: int, interval: int) -> tuple:
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    scaler.load_state_dict(scaler.state_dict() | {"scale": scale, "_growth_tracker": good_steps})
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale(), scaler.state_dict()["_growth_tracker"]


def _with_gradients_times(factor: float) -> Callable:
    """Return a wrong update whose gradients are multiplied by the scale to this power."""

    def step(loss, optimizer, scale, good_steps, interval):
        optimizer.zero_grad()
        (loss * scale**factor).backward()
        optimizer.step()
        return scale, good_steps + 1

    return step


def _accumulating(loss, optimizer, scale, good_steps, interval):
    (loss * scale).backward()
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad /= scale
    optimizer.step()
    return scale, good_steps + 1


def _nothing(loss, optimizer, scale, good_steps, interval):
    return scale, good_steps


_UPDATES = ((1.0, -0.5, 2.0), (0.5, 0.25, -1.0))
_ONE_UPDATE = (
    (_nothing, "The weights did not move. If all gradients are finite, call optimizer.step()."),
    (_with_gradients_times(1), "The gradients are still scaled. Divide each gradient by the scale, before step()."),
    (_with_gradients_times(-1), "The gradients were divided by the scale twice. Unscale once."),
)
_TWO_UPDATES = (
    (_accumulating, "Gradients add up, because backward() adds to the old ones. Call optimizer.zero_grad() first."),
)


def _weights(fn: Callable, n_updates: int) -> torch.Tensor:
    lab = _Lab()
    for slopes in _UPDATES[:n_updates]:
        lab.update(fn, slopes)
    return lab.values()


def _compare(fn: Callable, n_updates: int, mistakes: Sequence[tuple[Callable, str]]) -> None:
    known = [(_weights(mistake, n_updates), hint) for mistake, hint in mistakes]
    expect_close(_weights(fn, n_updates), _weights(_reference, n_updates), mistakes=known, rtol=1e-5, atol=1e-7)


def _scales_the_loss(fn: Callable) -> None:
    """The loss is multiplied by the scale before the backward pass, not the gradients after it"""
    lab, factors = _Lab(scale=64.0), []
    lab.weights[0].register_hook(lambda gradient: factors.append(gradient[0].item()))
    lab.update(fn, (1.0, 1.0, 1.0))
    if not factors:
        raise Wrong("a backward()", "none", "Call (loss * scale).backward().")
    hint = "Small gradients become zero inside backward(). To scale them afterwards is too late."
    expect_close(factors[-1], 64.0, mistakes=[(1.0, hint)])


def _skips(fn: Callable, bad: float, name: str) -> None:
    """One gradient of the second weight is ``bad``. A good update before has given the optimizer momentum."""
    lab, expected = _Lab(), _Lab()
    for each, step in ((lab, fn), (expected, _reference)):
        each.update(step, (1.0, -0.5, 2.0))
    before = expected.values()
    lab.update(fn, (1.0, 1.0, bad))
    got = lab.values()
    if not got.isfinite().all():
        only = "isfinite() is False for inf as well as for NaN." if math.isinf(bad) else _SKIP
        raise Wrong(before, got, f"{name} went into the weights. Test all gradients of every tensor. {only}")
    expect_close(got, before, hint=f"The weights changed although a gradient is {name}. {_SKIP}", rtol=1e-6)


def _looks_at_gradients(fn: Callable) -> None:
    """A finite loss can have an infinite gradient"""
    lab = _Lab()
    w = lab.weights[1]
    before = lab.values()
    loss = lab.loss((1.0, 1.0, 1.0)) + (w - w.detach()).sqrt().sum()  # adds 0, with slope 1 / 0
    fn(loss, lab.optimizer, lab.scale, lab.good_steps, INTERVAL)
    hint = "The loss was finite, but one gradient was infinite, and the weights were updated. Look at the gradients."
    expect_close(lab.values(), before, hint=hint, rtol=1e-6)


def _backs_off(fn: Callable) -> None:
    """After an overflow the scale is halved, and good_steps is 0"""
    mistakes = [
        (16.0, "The scale grew after an overflow. Halve it."),
        (8.0, "The scale stayed the same. After an overflow, halve it."),
        (2.0, "The scale was halved twice. One overflow halves the scale once."),
        (0, "Return the scale first, then good_steps."),
    ]
    for bad in (math.inf, math.nan):
        scale, good_steps = _Lab(scale=8.0, good_steps=INTERVAL - 1).update(fn, (1.0, bad, 1.0))
        expect_close(scale, 4.0, mistakes=mistakes)
        expect_close(good_steps, 0, hint="After an overflow, good_steps starts again from 0.")
    lowest, _ = _Lab(scale=1.0).update(fn, (1.0, math.inf, 1.0))
    hint = "The scale has no floor at 1. Very large gradients need a scale below 1, so always halve it."
    expect_close(lowest, 0.5, mistakes=[(1.0, hint)])


def _grows(fn: Callable, expected: list[float], hint: str = "", mistakes: Sequence[tuple[list, str]] = ()) -> None:
    """Compare the scales after several good updates."""
    lab = _Lab()
    seen = [float(lab.update(fn, (0.1, 0.1, 0.1))[0]) for _ in expected]
    expect(seen, expected, hint, mistakes)


_DOUBLES = "The scale doubles in good update number `interval`, not earlier and not later"
_GROWTH = (
    (
        [8.0, 8.0, 8.0],
        "Count this update too, before you compare with the interval. The scale doubles in update number `interval`.",
    ),
    ([8.0, 16.0, 16.0], "The scale grew one good update too early."),
    ([16.0, 32.0, 64.0], "The scale doubles after `interval` good updates, not after each one."),
    ([8.0, 8.0, 4.0], "After `interval` good updates the scale doubles. It is halved only after an overflow."),
)
_AGAIN = (
    "When the scale has doubled, good_steps starts again from 0. The next doubling is `interval` good updates later."
)


def _long_story(fn: Callable) -> None:
    """Twelve updates, some of them with an overflow, give the same results as GradScaler"""
    slopes = [1.0, math.inf, 1.0, 1.0, math.nan, 1.0, 1.0, 1.0, 1.0, -math.inf, 1.0, 1.0]
    lab, expected = _Lab(), _Lab()
    for number, slope in enumerate(slopes, 1):
        wanted = expected.update(_reference, (slope, 0.5, -0.25))
        got = lab.update(fn, (slope, 0.5, -0.25))
        hint = f"The first difference is in update {number}. The gradients until then were {slopes[:number]}."
        expect((float(got[0]), int(got[1])), (float(wanted[0]), int(wanted[1])), hint)
    expect_close(lab.values(), expected.values(), rtol=1e-5)


def _real_fp16(fn: Callable) -> None:
    """A small network learns in fp16, although its unscaled gradients would become zero"""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, eps=1e-20)
    scale, good_steps, losses = 2.0**40, 0, []
    for _ in range(60):
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(x), x.roll(1, 1))
        losses.append(loss.item())
        # The factor makes the gradients as small as those of a mean over 100,000 times as many values.
        scale, good_steps = fn(loss * 1e-5, optimizer, scale, good_steps, 20)
    hint = "The first scale is far too large. It must fall until updates are good, and then the loss must fall."
    if not losses[-1] < 0.5 * losses[0]:
        raise Wrong(f"a loss under {0.5 * losses[0]:.3f}", f"{losses[-1]:.3f}", hint)


_HINTS = (
    "There are six steps. Remove old gradients. Call backward() on loss × scale. Divide each gradient by the scale. "
    "Test whether all are finite. Step or skip. Change the scale and good_steps.",
    "The optimizer knows all weights, in optimizer.param_groups. Leave out weights whose p.grad is None.",
    "After a good update, good_steps + 1 updates were good. If this equals interval, double the scale and return 0.",
)
_CODE = (
    "weights = [p for group in optimizer.param_groups for p in group['params'] if p.grad is not None]",
    "good = all(p.grad.isfinite().all() for p in weights)",
)
EXERCISE = Exercise(
    name="scaled_update",
    chapter="04",
    cases=(
        case("A good update moves the weights by the gradients of the loss itself", _compare, 1, _ONE_UPDATE),
        case("Gradients of the update before do not count", _compare, 2, _TWO_UPDATES),
        _scales_the_loss,
        case("NaN in one gradient leaves all weights where they are", _skips, math.nan, "NaN"),
        case("inf in one gradient leaves all weights where they are", _skips, math.inf, "inf"),
        _looks_at_gradients,
        _backs_off,
        case(_DOUBLES, _grows, [8.0, 8.0, 16.0], mistakes=_GROWTH),
        case("After growing, the count starts again", _grows, [8.0, 8.0, 16.0, 16.0, 16.0, 32.0], _AGAIN),
        _long_story,
        _real_fp16,
    ),
    hints=_HINTS,
    code=_CODE,
)
