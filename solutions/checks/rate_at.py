"""Check of chapter 12's exercise: the rate of every update under linear scaling, gradual warm-up and a cosine.

The answer is compared with a small reference at every update of a run, and past its end. Each well-known mistake is
the reference with one thing changed, so a case can name the mistake that gives exactly the learner's rates.
Goyal et al. 2017 (arXiv:1706.02677).
"""

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close


@dataclass(frozen=True)
class Run:
    """A run on several ranks, as its owner describes it.

    Attributes:
        base_rate, base_batch: a rate that is known to be good, and the batch for which it is.
        ranks, batch_per_rank: together they make the global batch.
        samples: in the training set; a batch that would not be full is left out of an epoch.
        epochs, warmup_epochs: in all, and those in which the rate rises.
    """

    base_rate: float
    base_batch: int
    ranks: int
    batch_per_rank: int
    samples: int
    epochs: int
    warmup_epochs: int


@dataclass(frozen=True)
class _Schedule:
    """The reference, with a switch for every mistake."""

    scale: Callable[[float], float] = lambda ratio: ratio
    times: Callable[[Run], float] = lambda run: 1.0  # a factor too many
    per_rank: bool = False  # an epoch counted in the batches of one rank
    divide: Callable[[int, int], float] = operator.floordiv  # samples by a batch
    in_epochs: bool = False  # warmup_epochs taken for updates
    early: int = 1  # parts that the first update has moved
    from_zero: bool = False
    stairs: bool = False  # the rate rises once an epoch
    cold: bool = False  # no warm-up at all
    whole: bool = False  # the cosine runs over the whole run,
    lag: bool = False  # or counts its length from the start of the run,
    late: int = 0  # or starts at another update
    half: float = 1.0  # of the cosine's argument
    clamp: bool = True
    to_base: bool = False  # ends at the base rate

    def steps_per_epoch(self, run: Run) -> float:
        """Batches of an epoch, whole ones where it is right."""
        return self.divide(run.samples, run.batch_per_rank if self.per_rank else run.ranks * run.batch_per_rank)

    def peak(self, run: Run) -> float:
        """The rate at the end of the warm-up."""
        return run.base_rate * self.scale(run.ranks * run.batch_per_rank / run.base_batch) * self.times(run)

    def rate(self, step: int, run: Run) -> float:
        """The rate of one update."""
        epoch, peak = self.steps_per_epoch(run), self.peak(run)
        warmup, steps = run.warmup_epochs * (1 if self.in_epochs else epoch), run.epochs * epoch
        if step < warmup and not self.cold:
            part = (step // epoch * epoch if self.stairs else step + self.early) / warmup
            low = 0.0 if self.from_zero else run.base_rate
            return low + (peak - low) * part
        part = step / steps if self.whole else (step - warmup + self.late) / (steps - (0 if self.lag else warmup))
        low = run.base_rate if self.to_base else 0.0
        return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * self.half * (min(1.0, part) if self.clamp else part)))


_RIGHT = _Schedule()
_MISTAKES = (
    ({"times": lambda run: run.ranks}, "Scaled twice: the global batch holds the ranks already."),
    ({"times": lambda run: 1 / run.ranks}, "The batch that counts is the global one: all ranks' samples together."),
    ({"scale": lambda ratio: 1.0}, "The peak must be scaled: k times the batch, k times the base rate."),
    ({"scale": math.sqrt}, "That is square-root scaling; here the rate grows in proportion to the batch."),
    ({"scale": math.floor}, "Whole-number division loses a part: a batch of 80 is 2.5 times one of 32. Use /."),
    (
        {"scale": lambda ratio: 1.0, "times": lambda run: run.ranks},
        "The number of ranks is not the ratio of the batches: compare the global batch with base_batch.",
    ),
    ({"in_epochs": True}, "warmup_epochs counts epochs; a step is one update. Multiply by the updates of an epoch."),
    ({"per_rank": True}, "An epoch has samples // global batch updates: all ranks share its samples."),
    (
        {"divide": lambda samples, batch: math.ceil(samples / batch)},
        "A batch that would not be full is left out of an epoch: round the number of batches down, not up.",
    ),
    (
        {"divide": operator.truediv},
        "An epoch has a whole number of updates: samples / batch keeps a part of a batch that is never trained on.",
    ),
    ({"early": 0}, "One update late: the first has moved one part already, the last of the warm-up is at the peak."),
    ({"from_zero": True}, "Gradual warm-up starts from the base rate, which is known to be safe, not from 0."),
    ({"from_zero": True, "early": 0}, "Starting from 0 wastes the first update. Start from the base rate."),
    ({"stairs": True}, "The rate rises with every update, not once an epoch."),
    ({"cold": True, "whole": True}, "There is no warm-up: the first epochs must rise from the base rate to the peak."),
    ({"cold": True}, "There is no warm-up: the first epochs must rise from the base rate to the peak."),
    ({"whole": True}, "The cosine starts after the warm-up, at the peak: count its part of the way from there."),
    ({"lag": True}, "The cosine has only the updates after the warm-up: divide by steps - warm-up."),
    ({"late": 1}, "The first update after the warm-up is still at the peak: cos(0)."),
    ({"half": 2.0}, "That is a whole cosine, back up to the peak: half of one, from 0 to π, is enough."),
    ({"half": 0.5}, "The argument runs from 0 to π, so that the cosine ends at -1 and the rate at 0."),
    ({"clamp": False}, "Past the last update the cosine rises again: stay at the end, with min(1, …)."),
    ({"to_base": True}, "The cosine ends at 0, not at the base rate."),
)
_SHORT = Run(base_rate=0.1, base_batch=32, ranks=1, batch_per_rank=32, samples=320, epochs=6, warmup_epochs=2)
_FOUR = Run(base_rate=0.02, base_batch=64, ranks=4, batch_per_rank=32, samples=1_024, epochs=6, warmup_epochs=2)
_UNEVEN = Run(base_rate=0.05, base_batch=32, ranks=5, batch_per_rank=16, samples=500, epochs=8, warmup_epochs=3)
_COLD = Run(base_rate=0.1, base_batch=32, ranks=2, batch_per_rank=64, samples=1_000, epochs=4, warmup_epochs=0)
_MANY = Run(base_rate=0.1, base_batch=256, ranks=64, batch_per_rank=32, samples=50_000, epochs=30, warmup_epochs=5)


def _steps(run: Run) -> int:
    return run.epochs * int(_RIGHT.steps_per_epoch(run))


def _compare(fn: Callable, run: Run, steps: Iterable[int]) -> None:
    """The first update whose rate is not the reference's, and which mistake gives all the rates."""
    steps = list(steps)
    expected = [_RIGHT.rate(step, run) for step in steps]
    got = []
    for step, right in zip(steps, expected, strict=True):
        got.append(fn(step, run))
        expect_close(got[-1], right, atol=1e300)  # a number at all
    wrong = next((n for n, pair in enumerate(zip(got, expected, strict=True)) if not _close(*pair)), None)
    if wrong is None:
        return
    hint = next((text for change, text in _MISTAKES if _gives(replace(_RIGHT, **change), run, steps, got)), "")
    raise Wrong(f"{expected[wrong]:.6g} at update {steps[wrong]}", f"{got[wrong]:.6g}", hint)


def _gives(schedule: _Schedule, run: Run, steps: list[int], got: list[float]) -> bool:
    return all(_close(a, schedule.rate(step, run)) for step, a in zip(steps, got, strict=True))


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


EXERCISE = Exercise(
    name="rate_at",
    chapter="12",
    cases=(
        case(
            "Four ranks: every update of the warm-up",
            _compare,
            _FOUR,
            range(_FOUR.warmup_epochs * int(_RIGHT.steps_per_epoch(_FOUR))),
        ),
        case("Four ranks: the whole run", _compare, _FOUR, range(_steps(_FOUR))),
        case(
            "One rank with the base batch: nothing to scale, the warm-up is flat",
            _compare,
            _SHORT,
            range(_steps(_SHORT)),
        ),
        case(
            "Five ranks, a batch 2.5 times the base, samples that do not fill a batch",
            _compare,
            _UNEVEN,
            range(_steps(_UNEVEN)),
        ),
        case("No warm-up asked for", _compare, _COLD, range(_steps(_COLD))),
        case(
            "Past the last update, as when a run is resumed for longer",
            _compare,
            _FOUR,
            range(_steps(_FOUR), _steps(_FOUR) + 40, 8),
        ),
        case("64 ranks for 30 epochs", _compare, _MANY, range(0, _steps(_MANY), 7)),
    ),
    hints=(
        "Four numbers first: the global batch, the peak, the updates of an epoch, the updates of the warm-up.",
        "In the warm-up: what part of the way to the peak has update 0 moved, and what part its last?",
        "After it: what part of the cosine's updates is over at its first one? The cosine of 0 is 1, that of π is -1.",
    ),
)
