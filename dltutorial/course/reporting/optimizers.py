"""Large batches: the learner's own race of optimizers, and the published ones (chapter 14).

In: records. Out: a section.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RACE = "optimizer race"
_MARKS = {"SGD": "o", "RMSprop/SGD": "s", "SGD+LARS": "D"}


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether the section here shows this record."""
    return record["chapter"] == "14" and record["what"] == _RACE


def section(found: Sequence[dict]) -> Section:
    """Own race, LAMB and Adam as published, ResNet-50 records."""
    rows = [r for r in pick.of(found, "measurement", "14") if r["what"] == _RACE]
    scores = _scores(rows[-1]) if rows else {}
    published = _records().html() + _lamb()
    first, last = _ends()
    if not scores:
        body = parts.todo("dltutorial run 14", "half a minute") + published
        finding = f"Published: ResNet-50 went from {first} to {last} minutes in three years"
        return Section("Large batches", finding, body, chapters="14", empty=True)
    means = {name: statistics.fmean(values) for name, values in scores.items()}
    finding = _leads(means)
    body = _race(scores, means).html() + parts.note(f"Measured on {pick.place(rows[-1])}.") + published
    return Section("Large batches", finding, body, chapters="14")


def _scores(row: Mapping[str, Any]) -> dict[str, list[float]]:
    """Optimizer and how it was tuned → accuracy of each fresh seed."""
    given = row.get("scores")
    if not isinstance(given, dict):
        return {}
    lists = {str(name): values for name, values in given.items() if isinstance(values, list) and values}
    return {name: values for name, values in lists.items() if all(pick.is_positive(value) for value in values)}


def _leads(means: Mapping[str, float]) -> str:
    """LAMB's lead over Adam, as much as was tuned; where that was not raced, the span of the means."""
    leads = {
        tuned: 100 * (means[f"LAMB, {tuned}"] - means[f"Adam, {tuned}"])
        for tuned in ("rate tuned", "all tuned")
        if {f"LAMB, {tuned}", f"Adam, {tuned}"} <= means.keys()
    }
    if not leads:
        return f"{len(means)} optimizers ended between {min(means.values()):.1%} and {max(means.values()):.1%}"
    return "LAMB's lead over Adam in points of accuracy: " + ", ".join(f"{x:+.1f} with {t}" for t, x in leads.items())


def _race(scores: Mapping[str, Sequence[float]], means: Mapping[str, float]) -> charts.Chart:
    widest = max(max(values) - min(values) for values in scores.values())
    title = f"Seeds of one optimizer scatter over up to {100 * widest:.0f} points; a bar is their mean"
    alt = "Test accuracy: " + "; ".join(
        f"{name} {means[name]:.3f} ({min(values):.3f} to {max(values):.3f})" for name, values in scores.items()
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        names = list(scores)
        for y, name in enumerate(names):
            colour = {"LAMB": plots.BLUE, "Adam": plots.ORANGE}.get(name.partition(",")[0], plots.GREY)
            marker = {"LAMB": "o", "Adam": "^"}.get(name.partition(",")[0], "s")
            ax.plot(scores[name], [y] * len(scores[name]), marker, color=colour, alpha=0.55, ms=6)
            ax.plot(means[name], y, "|", color=charts.INK, ms=20, mew=2.5)
        ax.set_yticks(range(len(names)), [charts.label(name, 20 if narrow else 40) for name in names])
        ax.set(xlabel="test accuracy", ylim=(len(names) - 0.5, -0.5))

    return charts.Chart(title, alt, draw, height=1.0 + 0.36 * len(scores), narrow=1.2 + 0.36 * len(scores))


def _lamb() -> str:
    rows = [
        (r["batch_size"], f"{int(r['step_budget']):,}", r["lamb_f1"] or "–", r["adam_f1"] or "–")
        for r in plots.reference("lamb_vs_adam")
    ]
    head = ("published: BERT, batch", "# steps", "# LAMB, F1", "# Adam, F1")
    return parts.table(head, rows) + parts.note(parts.source("lamb_vs_adam"))


def _ends() -> tuple[str, str]:
    minutes = sorted((float(row["minutes"]) for row in plots.reference("resnet50_race")), reverse=True)
    return f"{minutes[0]:,.0f}", f"{minutes[-1]:g}"


def _records() -> charts.Chart:
    rows = [r for r in plots.reference("resnet50_race") if r["batch_size"].isdigit()]
    first, last = _ends()
    title = f"Published: ResNet-50 on ImageNet, from {first} minutes to {last}, at ever larger batches"
    alt = "; ".join(f"{r['team']} {r['year']}: batch {int(r['batch_size']):,}, {r['minutes']} minutes" for r in rows)

    def draw(ax: "Axes", narrow: bool) -> None:
        for optimizer, marker in _MARKS.items():
            chosen = [r for r in rows if r["optimizer"] == optimizer]
            if chosen:
                ax.plot([int(r["batch_size"]) for r in chosen], [float(r["minutes"]) for r in chosen], marker, ms=8,
                        label=optimizer)  # fmt: skip
        for r in rows:
            left = r["team"] in ("Ying et al.", "Akiba et al.")
            words = r["team"].removesuffix(" et al.") if narrow else f"{r['team']} {r['year']}, {r['top1_percent']}%"
            ax.annotate(words, (int(r["batch_size"]), float(r["minutes"])), xytext=(-8 if left else 8, -3),
                        textcoords="offset points", fontsize=8, ha="right" if left else "left")  # fmt: skip
        charts.plain(ax, "x")
        charts.plain(ax, "y")
        ax.set(xlabel="samples in a batch" + ("" if narrow else " (labels: top-1 accuracy)"), ylabel="minutes",
               xlim=(150, 9e5))  # fmt: skip
        charts.legend(ax, narrow, 3)

    return charts.Chart(title, alt, draw, parts.source("resnet50_race"), height=4.3, narrow=4.8)
