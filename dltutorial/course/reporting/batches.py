"""Convergence: updates to a target against batch size, and the noise that tells the knee (chapters 12 and 13).

In: records of both chapters and of ``bench convergence``. Out: a section. S = S_min (1 + B_crit / B), McCandlish et
al. 2018, arXiv:1812.06162.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CURVE, _KNEE, _NOISE = "steps against batch", "critical_batch_size", "simple_noise_scale"
_BENCH = re.compile(r"(\w+): (batch (\d+)|S_min|B_crit)")


@dataclass(frozen=True)
class Curve:
    """Updates to the target by batch size, and the fit through them."""

    name: str
    steps: Mapping[int, float]
    s_min: float
    b_crit: float


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether the section here shows this record."""
    return record["chapter"] in ("12", "13") and record["what"] in (_CURVE, _KNEE, _NOISE)


def section(found: Sequence[dict]) -> Section:
    """The curve with its knee, the knee that the noise told, and what was published."""
    curves, knees = _curves(found), _knees(found)
    published = _accuracy().html()
    if not curves and not knees:
        body = parts.todo("dltutorial run 12 13", "two minutes") + published
        finding = "Steps against batch size were not measured here yet"
        return Section("Batch size", finding, body, chapters="12, 13", empty=True)
    body = _chart(curves).html() if curves else parts.todo("dltutorial run 12", "a minute")
    body += _knee_table(knees) if knees else parts.todo("dltutorial run 13", "a minute")
    if curves:
        b_crit, s_min = curves[0].b_crit, curves[0].s_min
        finding = f"Beyond a batch of about {b_crit:,.0f} more samples hardly save steps: {s_min:,.0f} remain"
        tile = (f"{b_crit:,.0f}", "samples: the critical batch size of the small task")
    else:
        name, knee, noise = knees[0][:3]
        finding = f"The noise told a critical batch of {noise:,.0f} for the {name}; measured: {knee:,.0f}"
        tile = (f"{knee:,.0f}", f"samples: the critical batch size of the {pick.short(name, 12)}")
    return Section("Batch size", finding, body + published, (tile,), "12, 13")


def _curves(found: Sequence[dict]) -> list[Curve]:
    """Chapter 12's newest of each place, then the benchmark's newest."""
    rows = [r for r in pick.measured(found, "12", _CURVE) if pick.is_positive(r.get("s_min"))]
    curves = []
    for where in pick.places(rows):
        row = pick.at(rows, where)[-1]
        points = {int(b): s for b, s in pick.positives(row.get("steps")).items() if b.isdecimal() and int(b) > 0}
        if len(points) > 1:
            curves.append(
                Curve(
                    f"{pick.short(where.machine, 22)}, {where.preset}",
                    dict(sorted(points.items())),
                    row["s_min"],
                    row["value"],
                )
            )
    return curves + _benched(found)


def _benched(found: Sequence[dict]) -> list[Curve]:
    rows = pick.named(r for r in pick.measured(found, "bench", "") if r.get("bench") == "convergence")
    groups: dict[str, dict[str, float]] = {}
    for what, row in rows.items():
        if match := _BENCH.fullmatch(what):
            groups.setdefault(match[1], {})[match[3] or match[2]] = row["value"]
    return [
        Curve(f"bench, {name}", {int(b): s for b, s in of.items() if b.isdecimal()}, of["S_min"], of["B_crit"])
        for name, of in groups.items()
        if {"S_min", "B_crit"} <= of.keys() and len(of) > 3
    ]


def _chart(curves: Sequence[Curve]) -> charts.Chart:
    first = curves[0]
    title = (
        f"Steps to the target fall as 1/B up to B_crit ≈ {first.b_crit:,.0f}, then stay near S_min ≈ {first.s_min:,.0f}"
    )
    alt = "; ".join(
        f"{c.name}: " + ", ".join(f"batch {b:,}: {s:,.0f} updates" for b, s in c.steps.items()) for c in curves
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        for curve, marker, colour in zip(curves[:4], charts.MARKERS, charts.COLOURS, strict=False):
            b = np.geomspace(min(curve.steps) / 1.5, max(curve.steps) * 1.5)
            ax.plot(b, curve.s_min * (1 + curve.b_crit / b), color=colour, lw=1.6)
            ax.plot(list(curve.steps), list(curve.steps.values()), marker, color=colour, ms=8,
                    label=charts.label(curve.name, 34))  # fmt: skip
        b = np.geomspace(min(first.steps) / 1.5, max(first.steps) * 1.5)
        ax.plot(b, first.s_min * first.b_crit / b, ":", color=plots.GREY, label="perfect scaling")
        ax.axhline(first.s_min, ls="--", lw=1.2, color=plots.GREY, label=f"S_min = {first.s_min:,.0f}")
        ax.axvline(first.b_crit, ls="-.", lw=1.2, color=plots.GREY, label=f"B_crit = {first.b_crit:,.0f}")
        charts.plain(ax, "x")
        charts.plain(ax, "y")
        ax.set(xlabel="batch size, samples", ylabel="updates to the target", ylim=(first.s_min / 2, None))
        charts.legend(ax, narrow)

    source = "Lines: S = S_min (1 + B_crit / B), McCandlish et al. 2018, arXiv:1812.06162."
    return charts.Chart(title, alt, draw, source, height=4.1, narrow=5.2)


def _knees(found: Sequence[dict]) -> list[tuple[str, float, float, str]]:
    """(survey, B_crit as measured, simple noise scale, where), the newest of each survey and place."""
    rows = [r for r in pick.measured(found, "13", "") if r["what"] in (_KNEE, _NOISE)]
    known: dict[tuple, dict[str, float]] = {}
    for row in rows:
        known.setdefault((str(row.get("survey", "survey")), pick.place(row)), {})[row["what"]] = row["value"]
    return [(name, of[_KNEE], of[_NOISE], str(where)) for (name, where), of in known.items() if len(of) == 2]


def _knee_table(knees: Sequence[tuple[str, float, float, str]]) -> str:
    rows = [
        (name, f"{noise:,.0f}", f"{knee:,.0f}", f"{max(noise / knee, knee / noise):.1f} ×", where)
        for name, knee, noise, where in knees
    ]
    head = ("survey", "# told by the gradients’ noise", "# B_crit, measured", "# apart", "where")
    return "<h3>The noise of a single run tells the knee</h3>" + parts.table(head, rows)


def _accuracy() -> charts.Chart:
    rows = plots.reference("sc20_cifar100_batch")
    title = "Published: accuracy falls with the batch, and warm-up returns it"
    alt = "CIFAR-100, ResNet-50: " + "; ".join(
        f"batch {r['global_batch_size']}, warm-up {r['warmup']}: {r['top1_percent']}%" for r in rows
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        for warm, style in (("no", "o-"), ("yes", "s--")):
            chosen = [r for r in rows if r["warmup"] == warm]
            x, y = ([float(r[key]) for r in chosen] for key in ("global_batch_size", "top1_percent"))
            ax.plot(x, y, style, label=f"warm-up: {warm}")
        charts.ranks(ax, sorted({int(r["global_batch_size"]) for r in rows}))
        ax.set(xlabel="global batch size", ylabel="top-1 accuracy, %")
        charts.legend(ax, narrow)

    return charts.Chart(title, alt, draw, parts.source("sc20_cifar100_batch"), height=2.9, narrow=3.4)
