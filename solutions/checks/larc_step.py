"""Checks of chapter 14's exercise: one update of LARC, whose rate stands outside of the momentum.

Each case hands the learner's function weights with planted gradients. What is right is ``_right``; what well-known
mistakes give is worked out beside it, so that each gets a hint of its own. At a constant rate ``_right`` moves as the
library's LARC, whose rate stands inside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

RATE, MOMENTUM, DECAY, TRUST = 0.5, 0.9, 0.1, 0.02
# Mistakes by name, each with its hint; ``_mistaken`` works out what they give.
_RATIO = {
    "rate twice": "The rate came in twice. λ is the layer's own rate, not a factor of γ; and γ v multiplies by γ.",
    "plain": "The layer moved as by SGD, though its λ is below γ: of the two rates the smaller one counts.",
    "upside down": "λ is upside down: weights above, gradient below.",
    "squared": "A norm is the root of the sum of squares; you left out the root.",
    "no trust": "The trust coefficient is missing from λ.",
    "of each number": "Take one norm of the whole layer, not one of each number.",
    "no rate": "The velocity holds no rate: multiply by γ where the weights move.",
    "uphill": "The weights went uphill: subtract.",
}
_CAPPED = {"uncapped": "This λ is above γ, and the layer moved by λ. That is LARS; in LARC no layer is faster than γ."}
_DECAYED = {
    "not below": "The decay is missing from the denominator: ‖g‖ + β ‖w‖.",
    "one norm": "The denominator is ‖g‖ + β ‖w‖, two norms, not the norm of g + β w.",
    "not above": "The decay is missing from the step: what is scaled is g + β w.",
    "apart": "The decay went around the ratio. What is scaled is g + β w as a whole.",
    "nowhere": "The decay is nowhere: it belongs into the denominator, and into the step.",
}
_REMEMBERED = {
    "inside": "The velocity holds the rates of their own times. Here γ stands outside: w ← w - γ v.",
    "raw": "The velocity holds raw gradients, and the λ of now limits them all. Limit first, then remember.",
    "forgotten": "The velocity was not kept for the next call. Change it in place, as the weights.",
    "damped": "The new part enters the velocity whole: m v + …, not m v + (1 - m) ….",
}
_GLOBAL = {"global": "That is one λ for all layers. Each layer has its own norms: compute them inside the loop."}
_VECTORS = {
    "adapted": "A bias was limited by a λ. Vectors (ndim 1) move by γ, as in SGD.",
    "decayed": "A bias was decayed. Vectors (ndim 1) take no decay.",
    "adapted and decayed": "A bias was limited by a λ, and decayed. Vectors (ndim 1) move by γ, without decay.",
}
_ZEROS = {"zero": "A layer of zeros has λ = 0, so it never leaves zero. Where a norm is zero, limit nothing."}
_TINY = {"eps": "A small number in the denominator swallows a small gradient. Ask whether it is zero instead."}
_UNMOVED = "The weights did not change. Change them in place: parameter -= …"
_KEEP = "Leave parameter.grad as it is: others may still read it. Make a new tensor of g + β w."


class _Lab:
    """Layers and their velocities, made afresh alike; a step plants the gradients and calls a function."""

    def __init__(self, *weights: Any) -> None:
        made = [torch.tensor(w, dtype=torch.float64) for w in weights]
        self.layers = [torch.nn.Parameter(w) for w in made]
        self.start = self.row()
        self.velocities = [torch.zeros_like(w) for w in made]

    def step(self, fn: Callable, gradients: Sequence[Any], rate: float = RATE, decay: float = DECAY) -> None:
        """One update by ``fn``, with these gradients; None is none."""
        for layer, g in zip(self.layers, gradients, strict=True):
            layer.grad = None if g is None else torch.tensor(g, dtype=torch.float64)
        with torch.no_grad():
            fn(self.layers, self.velocities, rate, MOMENTUM, decay, TRUST)

    def row(self) -> torch.Tensor:
        """All weights."""
        return torch.cat([layer.detach().flatten() for layer in self.layers])


def _right(layers: Sequence, velocities: Sequence, rate: float, momentum: float, decay: float, trust: float) -> None:
    """LARC as such a function."""
    for w, v in zip(layers, velocities, strict=True):
        if w.grad is None:
            continue
        own, limit = (decay, _own_rate(w, w.grad, decay, trust).item()) if w.ndim > 1 else (0.0, rate)
        factor = limit / rate if 0 < limit < rate else 1.0  # a λ that is inf or nan is below no rate
        v.mul_(momentum).add_(factor * (w.grad + own * w))
        w -= rate * v


def _mistaken(mistake: str) -> Callable:
    """LARC with one mistake, as such a function."""

    def step(layers: list, velocities: list, rate: float, momentum: float, decay: float, trust: float) -> None:
        everything = [torch.cat([x.flatten() for x in xs]) for xs in (layers, [layer.grad for layer in layers])]
        for w, v in zip(layers, velocities, strict=True):
            vector = w.ndim == 1
            own = decay if not vector or "decayed" in mistake else 0.0
            share = _own_rate(*(everything if mistake == "global" else (w, w.grad)), own, trust, mistake) / rate
            if mistake == "plain" or (vector and "adapted" not in mistake):
                share = torch.ones_like(share)
            elif mistake != "uncapped":
                share = share.clamp(max=1.0)
            move = w.grad + (0.0 if mistake in ("not above", "apart", "nowhere") else own) * w
            inside = {"raw": 1.0, "inside": rate * share, "rate twice": rate * share}.get(mistake, share)
            entered = inside * move * ((1 - momentum) if mistake == "damped" else 1.0)
            v.copy_(entered if mistake == "forgotten" else momentum * v + entered)
            outside = {"raw": rate * share, "inside": 1.0, "no rate": 1.0, "uphill": -rate}.get(mistake, rate)
            w -= outside * v + (rate * own * w if mistake == "apart" else 0.0)

    return step


def _own_rate(w: torch.Tensor, g: torch.Tensor, decay: float, trust: float, mistake: str = "") -> torch.Tensor:
    """λ of a layer, with a mistake if one is named."""
    w_norm, g_norm = w.norm(), g.norm()
    if mistake == "squared":
        w_norm, g_norm = w_norm**2, g_norm**2
    if mistake == "of each number":
        w_norm, g_norm = w.abs(), g.abs()
    below = {"not below": g_norm, "nowhere": g_norm, "one norm": (g + decay * w).norm(), "eps": g_norm + 1e-6}.get(
        mistake, g_norm + decay * w_norm
    )
    if mistake == "upside down":
        return trust * below / w_norm
    return (1.0 if mistake == "no trust" else trust) * w_norm / below


def _compare(
    fn: Callable,
    weights: Sequence[Any],
    steps: Sequence[tuple[Sequence[Any], float]],
    mistakes: Mapping[str, str],
    hint: str = "",
    decay: float = DECAY,
) -> None:
    """Some updates by the learner's function and by the right one."""
    right, got = _Lab(*weights), _Lab(*weights)
    wrong = {name: _Lab(*weights) for name in mistakes}
    for gradients, rate in steps:
        right.step(_right, gradients, rate, decay)
        for name, lab in wrong.items():
            lab.step(_mistaken(name), gradients, rate, decay)
    for gradients, rate in steps:
        got.step(fn, gradients, rate, decay)
    known = [(lab.row(), mistakes[name]) for name, lab in wrong.items()]
    expect_close(got.row(), right.row(), hint, [(got.start, _UNMOVED), *known], rtol=1e-6, atol=1e-15)


_W, _G = [[3.0, -1.0], [2.0, 0.5]], [[0.2, 0.1], [-0.4, 0.3]]
_STEEP = [[4.0, 2.0], [-8.0, 6.0]]


def _remembers(fn: Callable) -> None:
    """Three updates at falling rates, with momentum"""
    steps = [([_STEEP], RATE), ([[[-2.0, 1.0], [0.5, 1.5]]], RATE / 2), ([[[0.1, 0.0], [0.0, 0.1]]], RATE / 10)]
    _compare(fn, [_W], steps, _REMEMBERED, "The first update was right; a later one is not. What does v hold by then?")


def _rate_of_zero(fn: Callable) -> None:
    """An update at a rate of 0, as at the ends of a schedule, moves nothing, and is remembered"""
    got = _Lab(_W)
    got.step(fn, [_STEEP], rate=0.0)
    hint = "Which of λ and γ is smaller when γ is 0? Then nothing is limited: the gradient enters whole."
    expect_close(got.row(), got.start, "At a rate of 0 nothing moves. " + hint)
    expect_close(got.velocities[0], torch.tensor(_STEEP, dtype=torch.float64) + DECAY * got.layers[0].detach(), hint)


def _leaves_zero(fn: Callable) -> None:
    """A layer of zeros moves, and one without slope stays finite"""
    got = _Lab([[0.0, 0.0]], _W)
    got.step(fn, [[[1.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]], decay=0.0)
    zeros, still = (layer.detach() for layer in got.layers)
    if not got.row().isfinite().all():
        hint = "Something was divided by zero. Where a norm is zero, limit nothing."
        raise Wrong("finite weights", got.row(), hint)
    wanted = torch.tensor([[-RATE, 2 * RATE]], dtype=torch.float64)
    mistakes = [(torch.zeros_like(zeros), _ZEROS["zero"])]
    expect_close(zeros, wanted, "Where a norm is zero, limit nothing: an ordinary step.", mistakes)
    expect_close(still, torch.tensor(_W, dtype=torch.float64), "Without a slope nothing moves.")


def _tiny(fn: Callable) -> None:
    """Weights and gradient a billion times as small make a step a billion times as small"""
    small = [[[1e-9 * x for x in row] for row in xs] for xs in (_W, _G)]
    _compare(fn, small[:1], [(small[1:], RATE)], _TINY, "λ is a ratio: how long both are does not count.", decay=0.0)


def _leaves_the_rest_alone(fn: Callable) -> None:
    """A parameter without gradient stays, and gradients are not touched"""
    got = _Lab(_W, _W)
    got.step(fn, [None, _G])
    expect_close(got.layers[0].detach(), torch.tensor(_W, dtype=torch.float64), "One without a gradient moved.")
    if got.layers[1].grad is None:
        raise Wrong("a gradient", None, _KEEP)
    expect_close(got.layers[1].grad, torch.tensor(_G, dtype=torch.float64), _KEEP)


_HINTS = (
    "By which rate is a layer to move in the end? By which one does w ← w - γ v multiply? What is left for v to bring?",
    "Three things limit nothing: a vector, a norm of zero, a λ above γ. What do all three have in common?",
    "What is λ / γ when γ is 0, and when the gradient is 0? Which of these cases does torch.where catch?",
)
_CODE = (
    "above, below = trust * w.norm(), w.grad.norm() + decay * w.norm()",
    "factor = torch.where((above > 0) & (below > 0), above / (rate * below), 1.0).clamp(max=1.0)",
)
EXERCISE = Exercise(
    name="larc_step",
    chapter="14",
    cases=(
        case("A matrix whose λ is below γ moves by λ times its gradient", _compare, [_W], [([_STEEP], RATE)], _RATIO,
             decay=0.0),
        case("One whose λ is above γ moves as by SGD", _compare, [_W], [([[[0.02, 0.01], [-0.04, 0.03]]], RATE)],
             _CAPPED, decay=0.0),
        case("With decay, in both places where LARS has it", _compare, [_W], [([_STEEP], RATE)], _DECAYED),
        _remembers,
        case("Two matrices, each by its own norms", _compare, [_W, [[0.01, 0.02]]], [([_G, [[5.0, -7.0]]], RATE)],
             _GLOBAL),
        case("A bias takes the whole rate, and no decay", _compare, [_W, [0.3, -0.6]], [([_G, [0.2, 0.1]], RATE)],
             _VECTORS),
        _leaves_zero,
        _rate_of_zero,
        _tiny,
        _leaves_the_rest_alone,
    ),
    hints=_HINTS,
    code=_CODE,
)  # fmt: skip
