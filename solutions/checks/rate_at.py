"""Check of chapter 12's exercise: the rate of every update under linear scaling, gradual warm-up and a cosine.

The answer is compared with a small reference at every update of a run, and after its end. Each known mistake is the
reference with one change, so a case can name the mistake that gives exactly the learner's rates.
Source of the rule and of the warm-up: Goyal et al. 2017 (arXiv:1706.02677).
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
    """A run on several ranks.

    Attributes:
        base_rate: a learning rate that works well with the batch size ``base_batch``.
        base_batch: samples.
        ranks: the number of ranks.
        batch_per_rank: samples of one rank in one update. The global batch has the samples of all ranks.
        samples: in the training set. An incomplete global batch at the end of an epoch is omitted.
        epochs: of the complete run, with those of the warm-up.
        warmup_epochs: epochs of the warm-up.
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
    padded: bool = False  # an epoch counted as by DistributedSampler, which repeats samples
    divide: Callable[[int, int], float] = operator.floordiv  # samples by a batch
    in_epochs: bool = False  # warmup_epochs taken for updates
    early: int = 1  # equal steps that the first update has made
    from_zero: bool = False
    stairs: bool = False  # the rate rises once an epoch
    cold: bool = False  # no warm-up at all
    whole: bool = False  # the cosine runs over the whole run,
    lag: bool = False  # or counts its length from the start of the run,
    late: int = 0  # or starts at another update
    half: float = 1.0  # of the cosine's argument
    short: int = 0  # or reaches its end that many updates earlier
    straight: bool = False  # a straight line in place of the cosine
    peak_not_below_base: bool = False
    warmup_not_below_base: bool = False
    clamp: bool = True
    to_base: bool = False  # ends at the base rate

    def steps_per_epoch(self, run: Run) -> float:
        """Batches of an epoch, whole ones where it is right."""
        if self.padded:
            return math.ceil(run.samples / run.ranks) // run.batch_per_rank
        return self.divide(run.samples, run.batch_per_rank if self.per_rank else run.ranks * run.batch_per_rank)

    def peak(self, run: Run) -> float:
        """The rate at the end of the warm-up."""
        peak = run.base_rate * self.scale(run.ranks * run.batch_per_rank / run.base_batch) * self.times(run)
        return max(peak, run.base_rate) if self.peak_not_below_base else peak

    def rate(self, step: int, run: Run) -> float:
        """The rate of one update."""
        epoch, peak = self.steps_per_epoch(run), self.peak(run)
        warmup, steps = run.warmup_epochs * (1 if self.in_epochs else epoch), run.epochs * epoch
        if step < warmup and not self.cold:
            part = (step // epoch * epoch if self.stairs else step + self.early) / warmup
            low = 0.0 if self.from_zero else run.base_rate
            rate = low + (peak - low) * part
            return max(rate, run.base_rate) if self.warmup_not_below_base else rate
        part = self._decayed_part(step, warmup, steps)
        low = run.base_rate if self.to_base else 0.0
        factor = 1 - part if self.straight else 0.5 * (1 + math.cos(math.pi * self.half * part))
        return low + (peak - low) * factor

    def _decayed_part(self, step: int, warmup: float, steps: float) -> float:
        """The part of the decay that is over, from 0 to 1."""
        if self.whole:
            part = step / steps
        else:
            part = (step - warmup + self.late) / (steps - (0 if self.lag else warmup) - self.short)
        return min(1.0, part) if self.clamp else part


_RIGHT = _Schedule()
_NOT_BELOW = "With a global batch below base_batch, the peak is below base_rate. Use the same formulas, without max."
_MISTAKES = (
    ({"peak_not_below_base": True}, _NOT_BELOW),  # before "not scaled", which gives the same rates there
    ({"times": lambda run: run.ranks}, "Scaled twice: the global batch contains the batches of all ranks already."),
    ({"times": lambda run: 1 / run.ranks}, "That is the batch of one rank. The rule uses the global one."),
    ({"scale": lambda ratio: 1.0}, "The peak must be scaled: with k times the batch, it is k times the base rate."),
    ({"scale": math.sqrt}, "That is square-root scaling. Here the peak is proportional to the global batch."),
    ({"scale": math.floor}, "Whole-number division rounds down, but a batch of 80 is 2.5 times a batch of 32. Use /."),
    (
        {"scale": lambda ratio: 1.0, "times": lambda run: run.ranks},
        "The number of ranks is not the ratio of the batches. Divide the global batch by base_batch.",
    ),
    ({"warmup_not_below_base": True}, _NOT_BELOW),
    ({"in_epochs": True}, "warmup_epochs counts epochs, but step counts updates. Multiply by the updates of an epoch."),
    ({"per_rank": True}, "An epoch has samples // global batch updates, because all ranks share its samples."),
    (
        {"padded": True},
        "That is the count of a sampler that repeats samples. Here an epoch has samples // global batch updates.",
    ),
    (
        {"divide": lambda samples, batch: math.ceil(samples / batch)},
        "An incomplete global batch is omitted, so round the number of updates of an epoch down.",
    ),
    (
        {"divide": operator.truediv},
        "An epoch has a whole number of updates. samples / batch counts a part of a batch that is omitted.",
    ),
    (
        {"early": 0},
        "One update late: update 0 has made one of the W steps already, and the last of the warm-up has the peak.",
    ),
    ({"from_zero": True}, "The warm-up starts from the base rate, which is known to work, not from 0."),
    ({"from_zero": True, "early": 0}, "A start from 0 wastes the first update. Start from the base rate."),
    ({"stairs": True}, "The rate rises in each update, not once an epoch."),
    ({"cold": True, "whole": True}, "There is no warm-up. The rate of the first epochs rises from base to peak."),
    ({"cold": True}, "There is no warm-up. The rate of the first epochs rises from base to peak."),
    ({"whole": True}, "The cosine starts after the warm-up, at the peak. Subtract the warm-up from step."),
    ({"lag": True}, "The cosine has only the updates after the warm-up, so divide by steps - warm-up."),
    ({"short": 1}, "The cosine reaches 0 at the update after the last one, not at the last one. Do not subtract 1."),
    ({"late": 1}, "The first update after the warm-up is still at the peak, because cos(0) is 1."),
    ({"straight": True}, "After the warm-up, the rate follows half a cosine, not a straight line."),
    ({"half": 2.0}, "That is a complete cosine, which rises to the peak again. Use half of one, from 0 to π."),
    ({"half": 0.5}, "The argument of the cosine runs from 0 to π, so that the cosine ends at -1 and the rate at 0."),
    ({"clamp": False}, "Past the last update the cosine rises again. Keep the rate at 0 with min(1, …)."),
    ({"to_base": True}, "The cosine ends at 0, not at the base rate."),
)
_SHORT = Run(base_rate=0.1, base_batch=32, ranks=1, batch_per_rank=32, samples=320, epochs=6, warmup_epochs=2)
_FOUR = Run(base_rate=0.02, base_batch=64, ranks=4, batch_per_rank=32, samples=1_024, epochs=6, warmup_epochs=2)
_UNEVEN = Run(base_rate=0.05, base_batch=32, ranks=5, batch_per_rank=16, samples=500, epochs=8, warmup_epochs=3)
_COLD = Run(base_rate=0.1, base_batch=32, ranks=2, batch_per_rank=64, samples=1_000, epochs=4, warmup_epochs=0)
_SMALLER = Run(base_rate=0.1, base_batch=256, ranks=2, batch_per_rank=32, samples=640, epochs=6, warmup_epochs=2)
_PADDED = Run(base_rate=0.05, base_batch=32, ranks=5, batch_per_rank=16, samples=479, epochs=8, warmup_epochs=3)
_MANY = Run(base_rate=0.1, base_batch=256, ranks=64, batch_per_rank=32, samples=50_000, epochs=30, warmup_epochs=5)


def _steps(run: Run) -> int:
    return run.epochs * int(_RIGHT.steps_per_epoch(run))


def _compare(fn: Callable, run: Run, steps: Iterable[int]) -> None:
    """Report the first update with a wrong rate, and the mistake that gives all the rates."""
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
            "One rank with the base batch: the peak is the base rate",
            _compare,
            _SHORT,
            range(_steps(_SHORT)),
        ),
        case(
            "Five ranks, 2.5 times the base batch, and an incomplete batch at the end of each epoch",
            _compare,
            _UNEVEN,
            range(_steps(_UNEVEN)),
        ),
        case("warmup_epochs is 0", _compare, _COLD, range(_steps(_COLD))),
        case("A global batch smaller than base_batch", _compare, _SMALLER, range(_steps(_SMALLER))),
        case("Five ranks, and samples that nearly fill the last batch", _compare, _PADDED, range(_steps(_PADDED))),
        case(
            "Past the last update, for example in a run that is continued",
            _compare,
            _FOUR,
            range(_steps(_FOUR), _steps(_FOUR) + 40, 8),
        ),
        case("64 ranks for 30 epochs", _compare, _MANY, range(0, _steps(_MANY), 7)),
    ),
    hints=(
        "Compute four numbers first: the global batch, the peak, the updates of an epoch, and the updates W of the "
        "warm-up.",
        "The warm-up makes W equal steps from the base rate to the peak. Update 0 has made one. How many has update "
        "W - 1?",
        "Update W is the first of the cosine. There the argument is 0, and it would be π at the update after the last.",
    ),
)
