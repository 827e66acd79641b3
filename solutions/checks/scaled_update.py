"""Checks of chapter 04's exercise: one update with dynamic loss scaling.

Each case hands the learner's function a loss whose gradients are planted: ordinary numbers, inf or NaN. What is right
is what torch's own ``GradScaler`` does.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect, expect_close

INTERVAL = 3  # of the cases; the notebook's default is another
_SKIP = "An update with inf or NaN in a gradient must not happen at all: do not call optimizer.step()."


class _Lab:
    """Two weights and one that takes no part, an optimizer with a memory, and a state; made afresh alike."""

    def __init__(self, scale: float = 8.0, good_steps: int = 0):
        self.weights = [torch.nn.Parameter(torch.tensor([1.0, -2.0])), torch.nn.Parameter(torch.tensor([[0.5]]))]
        unused = torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([*self.weights, unused], lr=0.25, momentum=0.5)
        self.scale, self.good_steps = scale, good_steps

    def loss(self, slopes: Sequence[float]) -> torch.Tensor:
        """A loss whose gradient is ``slopes``: two for the first weight, one for the second."""
        return slopes[0] * self.weights[0][0] + slopes[1] * self.weights[0][1] + slopes[2] * self.weights[1].sum()

    def update(self, fn: Callable, slopes: Sequence[float]) -> Any:
        """One update; the learner's function returns scale and counter, which the next one gets."""
        got = fn(self.loss(slopes), self.optimizer, self.scale, self.good_steps, INTERVAL)
        if not isinstance(got, tuple) or len(got) != 2:
            raise Wrong("a tuple (scale, good_steps)", got, "" if got is None else "Return both: scale, good_steps.")
        self.scale, self.good_steps = got
        return got

    def values(self) -> torch.Tensor:
        """All weights in one row."""
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
    """The update of somebody whose gradients are too large, or too small, by a factor (of the scale's powers)."""

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
    (_nothing, "The weights did not move. After a backward() without overflow, call optimizer.step()."),
    (_with_gradients_times(1), "The gradients are still scaled. Divide each by the scale, before step()."),
    (_with_gradients_times(-1), "The gradients were divided once too often. Unscale once."),
)
_TWO_UPDATES = (
    (_accumulating, "Gradients add up from update to update. Clear them first, with optimizer.zero_grad()."),
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
    """The loss is scaled before it is differentiated, not the gradients afterwards"""
    lab, factors = _Lab(scale=64.0), []
    lab.weights[0].register_hook(lambda gradient: factors.append(gradient[0].item()))
    lab.update(fn, (1.0, 1.0, 1.0))
    if not factors:
        raise Wrong("a backward()", "none", "Differentiate the scaled loss: (loss * scale).backward().")
    hint = "Small gradients vanish inside backward(); scaling them afterwards is too late."
    expect_close(factors[-1], 64.0, mistakes=[(1.0, hint)])


def _skips(fn: Callable, bad: float, name: str) -> None:
    """One gradient is ``bad``, in the second tensor, after a good update has given the optimizer momentum."""
    lab, expected = _Lab(), _Lab()
    for each, step in ((lab, fn), (expected, _reference)):
        each.update(step, (1.0, -0.5, 2.0))
    before = expected.values()
    lab.update(fn, (1.0, 1.0, bad))
    got = lab.values()
    if not got.isfinite().all():
        only = "isfinite() is False for inf as well as for NaN." if math.isinf(bad) else _SKIP
        raise Wrong(before, got, f"{name} went into the weights. Look at every gradient of every tensor; {only}")
    expect_close(got, before, hint=f"The weights moved in spite of {name}. {_SKIP}", rtol=1e-6)


def _looks_at_gradients(fn: Callable) -> None:
    """A finite loss may have an infinite gradient"""
    lab = _Lab()
    w = lab.weights[1]
    before = lab.values()
    loss = lab.loss((1.0, 1.0, 1.0)) + (w - w.detach()).sqrt().sum()  # adds 0, with slope 1 / 0
    fn(loss, lab.optimizer, lab.scale, lab.good_steps, INTERVAL)
    hint = "The loss was finite, its gradient was not, and went into the weights. Look at the gradients."
    expect_close(lab.values(), before, hint=hint, rtol=1e-6)


def _backs_off(fn: Callable) -> None:
    """After an overflow the scale is half as large, and the count starts again"""
    mistakes = [
        (16.0, "The scale grew after an overflow. It must shrink: half as large."),
        (8.0, "The scale stayed. After an overflow it is half as large."),
        (2.0, "Halved twice. One overflow halves the scale once."),
        (0, "Return the scale first, then the count of good updates."),
    ]
    for bad in (math.inf, math.nan):
        scale, good_steps = _Lab(scale=8.0, good_steps=INTERVAL - 1).update(fn, (1.0, bad, 1.0))
        expect_close(scale, 4.0, mistakes=mistakes)
        expect_close(good_steps, 0, hint="An overflow ends the row of good updates: the count starts again from 0.")
    lowest, _ = _Lab(scale=1.0).update(fn, (1.0, math.inf, 1.0))
    hint = "A scale has no floor at 1: a loss with very large gradients needs one below it. Halve it, whatever it is."
    expect_close(lowest, 0.5, mistakes=[(1.0, hint)])


def _grows(fn: Callable, expected: list[float], hint: str = "", mistakes: Sequence[tuple[list, str]] = ()) -> None:
    """The scales after good updates in a row."""
    lab = _Lab()
    seen = [float(lab.update(fn, (0.1, 0.1, 0.1))[0]) for _ in expected]
    expect(seen, expected, hint, mistakes)


_DOUBLES = "The scale doubles with the last of `interval` good updates in a row, not sooner, not later"
_GROWTH = (
    (
        [8.0, 8.0, 8.0],
        "Count this update too before you compare: with good update number `interval` the scale doubles.",
    ),
    ([8.0, 16.0, 16.0], "The scale grew one good update too early."),
    ([16.0, 32.0, 64.0], "The scale grows after `interval` good updates in a row, not after each one."),
    ([8.0, 8.0, 4.0], "After good updates the scale doubles; it halves after an overflow."),
)
_AGAIN = "Once the scale has doubled, the count starts again from 0: the next doubling takes `interval` updates more."


def _long_story(fn: Callable) -> None:
    """Twelve updates with overflows among them go as with torch's own scaler"""
    slopes = [1.0, math.inf, 1.0, 1.0, math.nan, 1.0, 1.0, 1.0, 1.0, -math.inf, 1.0, 1.0]
    lab, expected = _Lab(), _Lab()
    for number, slope in enumerate(slopes, 1):
        wanted = expected.update(_reference, (slope, 0.5, -0.25))
        got = lab.update(fn, (slope, 0.5, -0.25))
        hint = f"They part at update {number}; the gradients so far were {slopes[:number]}."
        expect((float(got[0]), int(got[1])), (float(wanted[0]), int(wanted[1])), hint)
    expect_close(lab.values(), expected.values(), rtol=1e-5)


def _real_fp16(fn: Callable) -> None:
    """A small network in fp16, whose gradients vanish unscaled, learns"""
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
        # As if averaged over a field a hundred thousand times as large.
        scale, good_steps = fn(loss * 1e-5, optimizer, scale, good_steps, 20)
    hint = "The scale began far too large; it should have shrunk until updates succeeded, and the loss then fallen."
    if not losses[-1] < 0.5 * losses[0]:
        raise Wrong(f"a loss under {0.5 * losses[0]:.3f}", f"{losses[-1]:.3f}", hint)


_HINTS = (
    "Six steps: clear; differentiate loss × scale; divide each gradient; are all finite? step or skip; scale, count.",
    "Which object knows all weights? What is p.grad of a weight that took no part in the loss?",
    "How many updates in a row have been good once this one is? What happens to the count when the scale grows?",
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
