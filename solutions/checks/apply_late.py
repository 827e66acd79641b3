"""Checks of chapter 24's exercise: a server's update by a gradient that is late, too late, broken, or of the future.

Each case plays some arrivals to the learner's function and to ``_right``; what well-known mistakes give is worked out
beside it, so that each gets a hint of its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect, expect_close

RATE, MOMENTUM, LARGEST = 0.5, 0.9, 6
# Mistakes by name, each with its hint; ``_mistaken`` works out what they give.
_DIVIDED = {
    "whole": "The gradient entered whole. One that is τ updates late counts for a τ-th.",
    "plus one": "That is g / (τ + 1): one that is a single update late would count for half. It counts in full.",
    "upside down": "The staleness is the server's version minus the one that the worker had fetched.",
    "root": "That is g / √τ. Here the staleness itself divides.",
    "uphill": "The weights went uphill: subtract.",
    "no rate": "The rate is missing: the velocity holds gradients, w ← w - rate · v.",
    "damped": "The new part enters the velocity whole: m v + …, not m v + (1 - m) ….",
    "forgotten": "The velocity was not kept for the next call. Change it in place, as the weights.",
    "outside": "The staleness divided the step, not what enters the velocity. Later steps would then take all of it.",
    "still": "The weights did not change. Change them in place: w -= …",
}
_REMEMBERED = {
    "velocity, too": "The old velocity was divided, too. It came with gradients of other ages; only this one is late.",
    "momentum twice": "The momentum came in twice: once, on the old velocity.",
}
_FRESH = "A gradient that is not late (τ = 0) enters whole, and so does one with τ = 1: what is the least divisor?"
_STAYS = "A parameter without a gradient (None) stays as it is, and so does its velocity: skip it."
_KEEP = "The worker's tensors were changed. They are not yours: make new ones."
_UNMOVED = "The weights did not change. Change them in place: w -= …"
_LATE = "One that is more than `largest` late is dropped: neither weights nor velocities move."
_LIMIT = "A gradient exactly `largest` late still counts: only later ones are dropped."
_DROPPED = "Nothing was applied, so there is no new version: return the old one."
_NEXT = "One update makes the version one higher. Return it."
_BROKEN = "One NaN or inf in any of them, and the whole message is dropped: look at all before you move the first."
_FUTURE = "A version that the server has not reached belongs to another run: raise ValueError, before anything moves."


def _mistaken(mistake: str) -> Callable:
    """The right update with one mistake."""

    def apply(ws: list, vs: list, gs: list, taken_at: int, version: int, rate: float, m: float, largest: int) -> int:
        late = version - taken_at
        if late < 0:
            raise ValueError(late)
        if late > largest or not all(g is None or bool(g.isfinite().all()) for g in gs):
            return version
        least = {"plus one": late + 1, "whole": 1, "outside": 1, "upside down": max(1, -late)}
        share = 1 / (math.sqrt(max(1, late)) if mistake == "root" else least.get(mistake, max(1, late)))
        for w, v, g in zip(ws, vs, gs, strict=True):
            if g is None:
                continue
            kept = v * m * {"velocity, too": share, "momentum twice": m}.get(mistake, 1.0)
            new = kept + share * g * ((1 - m) if mistake == "damped" else 1.0)
            step = {"uphill": -rate, "no rate": 1.0, "outside": rate / max(1, late), "still": 0.0}.get(mistake, rate)
            w -= step * new
            if mistake != "forgotten":
                v.copy_(new)
        return version + 1

    return apply


_right = _mistaken("")


class _Server:
    """Weights and velocities, made afresh alike."""

    def __init__(self, *weights: Any) -> None:
        self.ws = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in weights]
        self.vs = [torch.zeros_like(w, requires_grad=False) for w in self.ws]
        self.start = self.row()

    def take(self, fn: Callable, gradients: Sequence[Any], taken_at: int, version: int, largest: int = LARGEST) -> Any:
        """One arrival; returns what ``fn`` says."""
        made = [None if g is None else torch.tensor(g, dtype=torch.float64) for g in gradients]
        sent = [None if g is None else g.clone() for g in made]
        with torch.no_grad():
            said = fn(self.ws, self.vs, made, taken_at, version, RATE, MOMENTUM, largest)
        for g, before in zip(made, sent, strict=True):
            if g is not None and before is not None:
                expect_close(g, before, _KEEP, rtol=0.0)
        return said

    def row(self) -> torch.Tensor:
        """All weights, then all velocities."""
        return torch.cat([x.detach().flatten() for x in (*self.ws, *self.vs)])


_W, _G = [[3.0, -1.0], [2.0, 0.5]], [[0.4, 0.1], [-0.8, 0.6]]


def _play(fn: Callable, arrivals: Sequence[tuple[int, int]], mistakes: Mapping[str, str], hint: str = "") -> None:
    """Gradients ``(taken at, version)`` arrive one after the other; what each changes is compared at the end."""
    right, got = _Server(_W), _Server(_W)
    wrong = {name: _Server(_W) for name in mistakes}
    scaled = [[[(n + 1) * x for x in row] for row in _G] for n in range(len(arrivals))]
    said = None
    for g, (taken_at, version) in zip(scaled, arrivals, strict=True):
        right.take(_right, [g], taken_at, version)
        for name, server in wrong.items():
            server.take(_mistaken(name), [g], taken_at, version)
    for g, (taken_at, version) in zip(scaled, arrivals, strict=True):
        try:
            said = got.take(fn, [g], taken_at, version)
        except ZeroDivisionError as error:
            error.add_note(_FRESH)
            raise
    if said is None:
        raise Wrong(arrivals[-1][1] + 1, None, _NEXT)
    known = [(server.row(), mistakes[name]) for name, server in wrong.items()]
    expect_close(got.row(), right.row(), hint, [(got.start, _UNMOVED), *known], rtol=1e-9, atol=1e-12)


def _counts(fn: Callable) -> None:
    """It returns the next version"""
    said = _Server(_W).take(fn, [_G], 4, 7)
    expect(said, 8, _NEXT)


def _two_layers(fn: Callable) -> None:
    """A parameter without a gradient stays, and so does its velocity; the worker's tensors stay what they are"""
    right, got = _Server(_W, [1.0, 2.0]), _Server(_W, [1.0, 2.0])
    for server, one in ((right, _right), (got, fn)):
        server.take(one, [_G, [1.0, -1.0]], 0, 1)
        server.take(one, [_G, None], 0, 3)
        server.take(one, [None, [0.5, 0.5]], 2, 3)
    expect_close(got.row(), right.row(), _STAYS, rtol=1e-9, atol=1e-12)


def _untouched(fn: Callable, gradients: Sequence[Any], taken_at: int, version: int, hint: str) -> None:
    """Nothing of this may be applied: weights and velocities stay, and so does the version."""
    got = _Server(_W, [1.0, 2.0])
    got.take(fn, [_G, [1.0, -1.0]], 0, 1)  # so that there is something in the velocities
    before = got.row()
    said = got.take(fn, gradients, taken_at, version)
    expect_close(got.row(), before, hint, rtol=0.0)
    expect(said, version, _DROPPED)


def _at_the_limit(fn: Callable) -> None:
    """One that is just as late as it may be still counts"""
    right, got = _Server(_W), _Server(_W)
    right.take(_right, [_G], 1, 1 + LARGEST)
    said = got.take(fn, [_G], 1, 1 + LARGEST)
    expect_close(got.row(), right.row(), _LIMIT, rtol=1e-9, atol=1e-12)
    expect(said, 2 + LARGEST, _LIMIT)
    got = _Server(_W)
    expect(got.take(fn, [_G], 5, 5, 0), 6, "With largest = 0 a gradient that is not late still counts.")


def _of_the_future(fn: Callable) -> None:
    """A gradient of weights that this server never had"""
    got = _Server(_W, [1.0, 2.0])
    try:
        said = got.take(fn, [_G, [1.0, -1.0]], 9, 7)
    except ValueError:
        expect_close(got.row(), got.start, _FUTURE, rtol=0.0)
        return
    raise Wrong("ValueError", said, _FUTURE)


EXERCISE = Exercise(
    name="apply_late",
    chapter="24",
    cases=(
        case("A gradient three updates late counts for a third", _play, [(4, 7)], _DIVIDED),
        case("One that is not late counts in full", _play, [(7, 7)], {}, _FRESH),
        case("So does one that is late by one", _play, [(7, 8)], {}, _FRESH),
        _counts,
        case("Three arrivals, of different ages, with momentum", _play, [(0, 0), (0, 2), (1, 5)], _REMEMBERED,
             "The first was right; a later one is not. What does the velocity hold by then?"),
        _two_layers,
        case("One that is too late is dropped", _untouched, [_G, [1.0, -1.0]], 1, 2 + LARGEST, _LATE),
        _at_the_limit,
        case("One with NaN in its last layer is dropped as a whole", _untouched, [_G, [1.0, math.nan]], 4, 7, _BROKEN),
        case("One with inf in its first layer is, too", _untouched, [[[0.1, math.inf], [0.0, 0.0]], [1.0, -1.0]], 4, 7,
             _BROKEN),
        _of_the_future,
    ),
    hints=(
        "Which questions can be answered before the first weight moves? Ask them first.",
        "What does the velocity hold: steps, or gradients? Which part of it is late?",
        "What is the staleness of a gradient whose weights are still the newest? What would you divide by?",
    ),
    code=("v.mul_(momentum).add_(g / max(1, version - taken_at))",),
)  # fmt: skip
