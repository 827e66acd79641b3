"""Predictions and their score: the learner against the models, question by question, in the course's order.

In: records of predictions. Out: a section. Off by a factor f: the guess was f times too high or too low. Only what was
typed in counts, and of each question the first such guess: a later one has seen the answer.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {"I · One device": range(8), "II · Many devices": range(8, 12), "III · Convergence": range(12, 16)}
_CLOSE = 2.0


@dataclass(frozen=True)
class Answer:
    """One question: the record that counts, and by what factors guess and model were off; None: not scored."""

    record: Mapping[str, Any]
    guess: float | None
    model: float | None
    default: float | None

    @property
    def name(self) -> str:
        """Chapter and question, in a few words."""
        return f"{self.record['chapter']} {pick.short(self.record['what'], 24)}"


def part_of(chapter: str) -> str | None:
    """The part of the course that a chapter belongs to; None for what is no chapter."""
    if not chapter.isdecimal():
        return None
    return next((name for name, numbers in PARTS.items() if int(chapter) in numbers), None)


def section(found: Sequence[dict]) -> Section:
    """Score, chart, table."""
    answers = _answers(found)
    if not answers:
        body = parts.todo("make lab", "then guess, and measure")
        return Section("Predictions", "Nothing was predicted yet", body, empty=True)
    guesses = [a.guess for a in answers if a.guess]
    models = [a.model for a in answers if a.model]
    body = _score(answers) + (_chart(answers).html() if guesses or models else "") + _table(answers)
    if not guesses:
        finding = "The guesses are the notebooks' defaults so far: none was typed in"
        finding += f"; the models are off by {statistics.median(models):.2g} × in the median" if models else ""
        body = parts.todo("make lab", "open a chapter, type a guess, then measure") + body
        return Section("Predictions", finding, body)
    off = f"{statistics.median(guesses):.2g} ×"
    finding = f"Your guesses are off by {off} in the median"
    finding += f", the models by {statistics.median(models):.2g} ×" if models else ""
    tile = (off, f"off: your median guess of {len(guesses)}")
    return Section("Predictions", finding, body, (tile,))


def _answers(found: Sequence[dict]) -> list[Answer]:
    groups = pick.latest(pick.of(found, "prediction"))
    return [_answer(next((r for r in group if r.get("touched") is True), last)) for last, group in groups]


def _answer(record: Mapping[str, Any]) -> Answer:
    guess, model = (next(iter(pick.factors([record.get(key)])), None) for key in ("ratio", "model_ratio"))
    touched = record.get("touched") is True
    return Answer(record, guess if touched else None, model, None if touched else guess)


def _score(answers: Sequence[Answer]) -> str:
    """You and the models, by part of the course: median factor, how many within a factor of two."""
    rows = []
    for name in PARTS:
        here = [a for a in answers if part_of(a.record["chapter"]) == name]
        if here:
            rows.append((name, *_sums([a.guess for a in here]), *_sums([a.model for a in here])))
    rows.append(("All", *_sums([a.guess for a in answers]), *_sums([a.model for a in answers])))
    head = ("part", "# you: median off", "# you: within 2 ×", "# model: median off", "# model: within 2 ×")
    both = [a for a in answers if a.guess and a.model]
    words = "A default left as it stood is no guess: it does not count. Of each question the first typed guess counts."
    if both:
        closer = sum(a.guess < a.model for a in both)
        words = f"On the {len(both)} questions that a model answered too, you were closer {closer} times. " + words
    return parts.table(head, rows) + parts.note(words + _progress(answers))


def _sums(factors: Sequence[float | None]) -> tuple[str, str]:
    there = [factor for factor in factors if factor]
    if not there:
        return "–", "–"
    return f"{statistics.median(there):.2g} ×", f"{sum(factor <= _CLOSE for factor in there)} of {len(there)}"


def _progress(answers: Sequence[Answer]) -> str:
    """Whether the second half of the guesses was closer than the first."""
    guesses = [a.guess for a in answers if a.guess]
    if len(guesses) < 6:
        return ""
    half = len(guesses) // 2
    first, second = statistics.median(guesses[:half]), statistics.median(guesses[half:])
    return f" In the first half of the course your median guess was {first:.2g} × off, in the second {second:.2g} ×."


def _chart(answers: Sequence[Answer]) -> charts.Chart:
    answers = [a for a in answers if a.guess or a.model or a.default]
    models = [a.model for a in answers if a.model]
    guesses = [a.guess for a in answers if a.guess]
    title = "How far from the measurement: the nearer to the line, the better"
    if models:
        title = f"The models' predictions are off by a factor of {statistics.median(models):.2f} in the median"
    if guesses:
        title = f"{sum(f <= _CLOSE for f in guesses)} of {len(guesses)} guesses lie within a factor of 2"
    alt = "Prediction divided by measurement. " + "; ".join(
        f"{a.name}: {'guess' if a.guess else 'default'} {_number(a.record.get('ratio'))}, "
        f"model {_number(a.record.get('model_ratio'))}"
        for a in answers
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        for key, marker, colour, name, counts in (
            ("ratio", "x", plots.GREY, "default, not counted", lambda a: a.default),
            ("model_ratio", "s", plots.BLUE, "model", lambda a: a.model),
            ("ratio", "o", plots.ORANGE, "your guess", lambda a: a.guess),
        ):
            points = [(a.record[key], y) for y, a in enumerate(answers) if counts(a)]
            if points:
                ax.plot(*zip(*points, strict=True), marker, color=colour, ms=8, mfc="none", mew=2, label=name)
        ax.axvspan(1 / _CLOSE, _CLOSE, color=plots.GREEN, alpha=0.12, lw=0, label="within 2 ×")
        ax.axvline(1, color=plots.GREY, ls="--", lw=1.2, label="measured")
        _factors(ax, answers, narrow)
        ax.set(xlabel="prediction / measurement", ylim=(len(answers) - 0.5, -0.5))
        ax.set_yticks(range(len(answers)), [charts.label(a.name, 18 if narrow else 30) for a in answers])
        charts.legend(ax, narrow, 2)

    return charts.Chart(title, alt, draw, height=1.3 + 0.27 * len(answers), narrow=2.0 + 0.25 * len(answers))


def _factors(ax: "Axes", answers: Sequence[Answer], narrow: bool) -> None:
    """An axis of factors about 1, wide enough for all but the wildest, which stand at its edge."""
    worst = min(1000.0, 1.3 * max(3, *(f for a in answers for f in (a.guess, a.model, a.default) if f)))
    for line in ax.get_lines():
        x = line.get_xdata()
        line.set_xdata([min(max(value, 1.05 / worst), worst / 1.05) for value in x])
    steps = [s for s in ((10, 100) if narrow else (3, 10, 30, 100, 300)) if s < worst] if worst > 12 else [2, 5]
    charts.times(ax, "x", tuple(sorted([1 / s for s in steps] + [1] + steps)))
    ax.set_xlim(1 / worst, worst)


def _table(answers: Sequence[Answer]) -> str:
    rows = [
        (
            a.record["chapter"],
            str(a.record.get("question") or a.record["what"]),
            parts.value(a.record.get("guess")) + ("" if a.record.get("touched") is True else " (default)"),
            parts.value(a.record.get("model")),
            parts.value(a.record.get("measured")),
            a.record.get("unit", ""),
            f"{a.guess:.2g} ×" if a.guess else "–",
        )
        for a in answers
    ]
    head = ("chapter", "question", "# guess", "# model", "# measured", "unit", "# your guess off by")
    places = pick.places(a.record for a in answers)
    if len(places) > 1:
        rows = [(*row, str(pick.place(a.record))) for row, a in zip(rows, answers, strict=True)]
        head += ("where",)
    return parts.folded(f"All {len(rows)} questions", parts.table(head, rows))


def _number(value: Any) -> str:
    return f"{value:.2f}" if pick.is_positive(value) else "none"
