"""Scaling: efficiency of this machine's ranks, and published runs up to 27,360 GPUs with the step model over them.

In: records of chapter 11 and of ``bench scaling``. Out: a section. Efficiency is the throughput of P ranks over P times
that of one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.record import plots
from dltutorial.scaling import published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_REAL = re.compile(r"real step, (\d+) ranks")
_BENCH = re.compile(r"(real) training, ranks: (\d+)|emulated, (.+), ranks: (\d+)")
_GPUS = np.unique(np.geomspace(1, 27_360, 60).astype(int))
_SHOWN = ("sc21-64", "mikami-2176", "goyal-256", "kurth-summit")
_BELOW, _LEFT = ("goyal-256", "kurth-summit"), ("kurth-summit", "kurth-daint", "sc21-128")  # where a label has room
_SOURCE = "Each run with its paper in the table below."
_YOURS = (
    " This machine's line is simulated: its emulated step, with the link that was measured between two of its ranks."
)
Steps = dict[str, dict[int, float]]  # way to step → ranks → seconds


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether the section here shows this record."""
    ours = ("real step, ", "emulated step", "simulated step", "published runs within")
    return record["chapter"] == "11" and record["what"].startswith(ours)


def section(found: Sequence[dict]) -> Section:
    """Measured here, then published."""
    steps = _ranked(found)
    if not steps:
        body = parts.todo("dltutorial run 11", "half a minute; dltutorial bench scaling takes more ranks")
        body += _published_chart(found).html() + _table()
        finding = f"Published: {_summit():.0%} of ideal on 27,360 GPUs"
        return Section("Scaling", finding, body, chapters="11", empty=True)
    where = pick.places(steps)[0]
    measured, told = _times(pick.at(steps, where))
    chart, finding, tile = _here(measured, told)
    others = [str(place) for place in pick.places(steps)[1:]]
    body = chart.html() + parts.note(
        f"Measured on {where}. An emulated step waits instead of computing, and its all-reduces are real: more ranks "
        "than cores would otherwise queue for a core." + (f" Also recorded on {pick.joined(others)}." if others else "")
    )
    body += _published_chart(found).html() + _table()
    return Section("Scaling", finding, body, tile, "11")


def _ranked(found: Sequence[dict]) -> list[dict]:
    """The records that are seconds of a step on some ranks."""
    return [r for r in pick.of(found, "measurement") if pick.is_positive(r.get("value")) and _arm(r)]


def _arm(record: Mapping[str, Any]) -> tuple[str, int] | None:
    """Which way to step, on how many ranks."""
    what = record["what"]
    if record["chapter"] == "11":
        if found := _REAL.fullmatch(what):
            return "real", int(found[1])
        arm, ranks = record.get("arm"), record.get("ranks")
        if what == "emulated step" and isinstance(arm, str) and isinstance(ranks, int) and ranks > 0:
            return arm, ranks
    if record["chapter"] == "bench" and record.get("bench") == "scaling" and (found := _BENCH.fullmatch(what)):
        return ("real", int(found[2])) if found[1] else (found[3], int(found[4]))
    return None


def _times(rows: Sequence[dict]) -> tuple[Steps, Steps]:
    """The newest seconds of every way to step, measured and predicted."""
    measured: Steps = {}
    told: Steps = {}
    for row in rows:
        way, ranks = _arm(row) or ("", 0)
        measured.setdefault(way, {})[ranks] = row["value"]
        if pick.is_positive(row.get("predicted")):
            told.setdefault(way, {})[ranks] = row["predicted"]
    whole = {way: dict(sorted(times.items())) for way, times in measured.items() if 1 in times and len(times) > 1}
    return whole, {way: dict(sorted(times.items())) for way, times in told.items() if way in whole}


def _efficiency(way: str, times: Mapping[int, float], one_s: float) -> dict[int, float]:
    """Of a growing batch: t1 / tP. Of a fixed one, ``strong``: t1 / (P tP)."""
    strong = way.startswith("strong")
    return {ranks: one_s / seconds / (ranks if strong else 1) for ranks, seconds in times.items()}


def _here(measured: Steps, told: Steps) -> tuple[charts.Chart, str, tuple[tuple[str, str], ...]]:
    curves = {way: _efficiency(way, times, times[1]) for way, times in measured.items()}
    expected = {way: _efficiency(way, times, measured[way][1]) for way, times in told.items()}
    if not curves:
        return charts.Chart("", "", lambda ax, narrow: None), "Steps on one rank only were measured here", ()
    ends = {way: list(curve.items())[-1] for way, curve in curves.items()}
    way = "weak, overlap" if "weak, overlap" in ends else next(iter(ends))
    ranks, reached = ends[way]
    steps = "Real steps" if way == "real" else f"Emulated steps ({way})"
    finding = f"{steps} keep {reached:.0%} of ideal on {ranks} ranks; Summit kept {_summit():.0%} on 27,360"
    title = "Efficiency on this machine’s ranks: " + " · ".join(f"{e:.0%} {w}" for w, (_, e) in ends.items())
    alt = "; ".join(f"{w}: " + ", ".join(f"{p} ranks {e:.0%}" for p, e in curve.items()) for w, curve in curves.items())

    def draw(ax: "Axes", narrow: bool) -> None:
        for (name, curve), marker, colour in zip(curves.items(), charts.MARKERS, charts.COLOURS, strict=False):
            label = "real training" if name == "real" else f"emulated, {charts.label(name)}"
            ax.plot(list(curve), list(curve.values()), marker=marker, color=colour, label=label)
            if name in expected:
                ax.plot(list(expected[name]), list(expected[name].values()), marker, mfc="none", mec=colour, ms=13)
        ax.axhline(1, color=plots.GREY, ls="--", lw=1.2, label="ideal")
        if expected:
            ax.plot([], [], "o", mfc="none", mec=charts.INK, ms=13, label="large, open: predicted")
        charts.ranks(ax, sorted({p for curve in curves.values() for p in curve}))
        ax.set(xlabel="ranks", ylabel="efficiency, of ideal", ylim=(0, None))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        charts.legend(ax, narrow)

    tile = (f"{reached:.0%}", f"of ideal on {ranks} ranks ({steps[0].lower()}{steps[1:]})")
    return charts.Chart(title, alt, draw, height=3.9, narrow=5.4), finding, (tile,)


def _published_chart(found: Sequence[dict]) -> charts.Chart:
    runs = published.runs()
    hits = sum(abs(run.error) < 0.05 for run in runs)
    title = f"Published runs: a model with nothing fitted meets {hits} of {len(runs)} within 5 points"
    alt = "; ".join(f"{r.what}: {r.efficiency:.0%} published, {r.predicted():.0%} by the model" for r in runs)
    yours = _yours(found)

    def draw(ax: "Axes", narrow: bool) -> None:
        colours = dict(zip(_SHOWN, charts.COLOURS, strict=False))
        for run in runs:
            colour = colours.get(run.key, plots.GREY)
            if run.key in colours:
                step_s = run.simulate(_GPUS).step_s
                ax.plot(_GPUS, step_s[0] / step_s, color=colour, lw=1.6, label=f"model: {run.key}")
            ax.plot([run.gpus] * 2, [run.efficiency, run.predicted()], ":", color=colour, lw=1.5)
            ax.plot(run.gpus, run.efficiency, "o", color=colour, ms=8)
            if not narrow or run.key in _SHOWN:
                left = run.key in _LEFT
                at = (-8 if left else 8, -11 if run.key in _BELOW else 3)
                ax.annotate(run.key, (run.gpus, run.efficiency), xytext=at, fontsize=8.5, color=colour,
                            textcoords="offset points", ha="right" if left else "left")  # fmt: skip
        if yours:
            ax.plot(*zip(*yours, strict=True), "-.", color=charts.INK, lw=2.4,
                    label="model: many like this machine")  # fmt: skip
        ax.plot([], [], "o", color=charts.INK, label="published; dots lead to the model")
        charts.plain(ax, "x")
        ax.set(xlabel="accelerators", ylabel="efficiency, of ideal", ylim=(min(0.55, _least(yours)), 1.02))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        charts.legend(ax, narrow)

    return charts.Chart(title, alt, draw, _SOURCE + (_YOURS if yours else ""), height=4.5, narrow=5.8)


def _yours(found: Sequence[dict]) -> list[tuple[int, float]]:
    """(ranks, efficiency): what the model says of many such machines, as chapter 11 recorded it."""
    rows = pick.measured(found, "11", "simulated step")
    ranks, step_s = (rows[-1].get(key) for key in ("ranks", "step_s")) if rows else ((), ())
    if not isinstance(ranks, list) or not isinstance(step_s, list) or not ranks or ranks[0] != 1:
        return []
    if not all(pick.is_positive(value) for value in [*ranks, *step_s]):
        return []
    return [(n, step_s[0] / s) for n, s in zip(ranks, step_s, strict=False)]


def _least(curve: Sequence[tuple[int, float]]) -> float:
    return 0.9 * min((efficiency for _, efficiency in curve), default=1.0)


def _summit() -> float:
    return published.run("kurth-summit").efficiency


def _table() -> str:
    papers = {row["run"]: row["source"] for row in plots.reference("scaling_published")}
    rows = [
        (
            r.key,
            r.what,
            f"{r.efficiency:.0%}",
            f"{r.predicted():.0%}",
            f"{100 * r.error:+.0f}",
            r.left_out,
            papers[r.key],
        )
        for r in published.runs()
    ]
    head = ("run", "published", "# efficiency", "# model", "# points off", "what the model leaves out", "source")
    return parts.folded(f"The {len(rows)} published runs, with sources", parts.table(head, rows))
