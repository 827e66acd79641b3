"""The ladder: this machine's own climb beside the five published ones.

In: records of chapter 07 and of ``bench ladder``. Out: a section. Every climb is relative to its own first row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.course.reporting.pick import Place
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHAT = "ladder_gain"
# What the published ladders share, in order; each takes the best of its rows, and stands at one of our own rungs.
_STATIONS = {
    "baseline": ("baseline",),
    "workers": ("workers_4", "workers_8", "workers_16"),
    "loader": ("dali",),
    "precision": ("fp16", "bf16"),
    "optimizer": ("fused_adam",),
    "compile": ("compile",),
}
MODELS = {"sc21": "3-D U-Net", "sc22": "3-D U-Net", "sc23": "ViT", "sc24": "ViT", "sc25": "ViT"}


@dataclass(frozen=True)
class Climb:
    """One climb here: rung → times as fast as the baseline, as measured and as predicted."""

    where: Place
    source: str
    gains: Mapping[str, float]
    told: Mapping[str, float]
    total: float
    total_told: float | None


def section(found: Sequence[dict]) -> Section:
    """Own climbs, one a machine and preset, over the published ladders."""
    published = published_gains()
    ends = [list(gains.values())[-1] for gains in published.values()]
    spread = f"{min(ends):.1f} to {max(ends):.1f} times"
    own = climbs(found)
    body = _chart(own, published).html()
    if not own:
        body = parts.todo("dltutorial run 07", "half a minute; dltutorial bench ladder takes every rung") + body
        body += "<p>This machine's own ladder: not yet recorded.</p>"
        finding = f"Published: tuning made one GPU train {spread} as fast"
        return Section("Ladder", finding, body, chapters="07", empty=True)
    for climb in own:
        words = f"{climb.where}, {climb.source}: {climb.total:.1f} × from baseline to best"
        words += f", {climb.total_told:.1f} × predicted" if climb.total_told else ""
        body += f"<p>{parts.text(words)}.</p>" + parts.folded("Rung by rung", _rungs(climb))
    first = own[0]
    finding = f"This machine's own ladder: {first.total:.1f} × from baseline to best; published ones {spread}"
    said = f", {first.total_told:.1f} × predicted" if first.total_told else ""
    tile = (f"{first.total:.1f} ×", f"as fast: the top of the ladder{said}")
    return Section("Ladder", finding, body, (tile,), "07")


def climbs(found: Sequence[dict]) -> list[Climb]:
    """The newest climb of each place, the newest place first: chapter 07's, or that of ``bench ladder`` if newer."""
    rows = [r for r in pick.of(found, "measurement") if pick.is_positive(r.get("value")) and _is_one(r)]
    return [_climb(pick.at(rows, where), where) for where in pick.places(rows)]


def _is_one(record: dict) -> bool:
    return (record["chapter"] == "07" and record["what"] == WHAT) or _is_bench(record)


def _is_bench(record: dict) -> bool:
    of_climb = record["what"] == "baseline" or record["what"].startswith("+ ") or record["what"].startswith("only ")
    return record["chapter"] == "bench" and record.get("bench") == "ladder" and of_climb


def _climb(rows: Sequence[dict], where: Place) -> Climb:
    last = rows[-1]
    if not _is_bench(last):
        gains, told = pick.positives(last.get("gains")), pick.positives(last.get("told"))
        predicted = last.get("predicted")
        known = predicted if pick.is_positive(predicted) else None
        return Climb(where, "chapter 07", _path(gains), _path(told), last["value"], known)
    newest = {row["what"]: row for row in rows if _is_bench(row)}
    base = newest.get("baseline", last)["value"]
    gains = {what: row["value"] / base for what, row in newest.items()}
    told = {what: row["predicted"] / base for what, row in newest.items() if pick.is_positive(row.get("predicted"))}
    path, said = _path(gains), _path(told)
    return Climb(where, "bench ladder", path, said, list(path.values())[-1] if path else 1.0,
                 list(said.values())[-1] if said else None)  # fmt: skip


def _path(gains: Mapping[str, float]) -> dict[str, float]:
    """Rung → gain along the climb: the baseline, the first rung alone, then each on top of those before."""
    alone = [what for what in gains if what.startswith("only ")]
    climb = [what for what in gains if what == "baseline" or what in alone[:1] or what.startswith("+ ")]
    return {what.removeprefix("only ").removeprefix("+ "): gains[what] for what in climb}


def published_gains() -> dict[str, dict[str, float]]:
    """For each published ladder: station → throughput over its baseline's; stations it does not have are left out."""
    rows = {row["step"]: row for row in plots.reference("nersc_ladders")}
    found: dict[str, dict[str, float]] = {}
    for edition in MODELS:
        base = float(rows["baseline"][edition])
        for station, steps in _STATIONS.items():
            values = [float(rows[step][edition]) for step in steps if rows[step][edition]]
            if values:
                found.setdefault(edition, {})[station] = max(values) / base
    return found


def _chart(own: Sequence[Climb], published: Mapping[str, Mapping[str, float]]) -> charts.Chart:
    stops = _stops(own)
    title = "Published: the 3-D U-Net gains most from faster input, the ViT from half precision"
    if own:
        low, high = (f(list(gains.values())[-1] for gains in published.values()) for f in (min, max))
        title = f"Here the ladder ends at {own[0].total:.1f} ×, the published ones at {low:.1f} to {high:.1f} ×"
    alt = "Times as fast as the first row. " + "; ".join(
        [f"here ({climb.where}): {_listed(climb.gains) or f'{climb.total:.1f} in all'}" for climb in own]
        + [f"{edition.upper()}: {_listed(gains)}" for edition, gains in published.items()]
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        for (edition, gains), marker in zip(published.items(), "sD^vP", strict=True):
            style = "-" if MODELS[edition] == "ViT" else "--"
            label = f"{edition.upper()}, {MODELS[edition]}, A100: {list(gains.values())[-1]:.1f} ×"
            ax.plot([stops.index(s) for s in gains], list(gains.values()), marker=marker, ls=style, lw=1.2, ms=5,
                    label=label)  # fmt: skip
        for climb, style in zip(own[:3], ("-", "-.", ":"), strict=False):
            path = climb.gains or {stops[0]: 1.0, stops[-1]: climb.total}
            at = [stops.index(rung) for rung in path]
            name = f"here, {charts.label(climb.where.machine, 24)}: {climb.total:.1f} ×"
            ax.plot(at, list(path.values()), "o", ls=style, color=charts.INK, lw=3, ms=8, label=name)
            if climb.told:
                ax.plot([stops.index(r) for r in climb.told], list(climb.told.values()), "o", mfc="none",
                        mec=charts.INK, ms=14, label="predicted from parts" if climb is own[0] else None)  # fmt: skip
        charts.times(ax, "y", (1, 2, 4, 8))
        ax.set(ylabel="times as fast as the first row")
        ax.set_xticks(range(len(stops)), stops, rotation=35 if narrow else 0, ha="right" if narrow else "center")
        charts.legend(ax, narrow)

    return charts.Chart(title, alt, draw, parts.source("nersc_ladders"), height=4.4, narrow=5.8)


def _stops(own: Sequence[Climb]) -> list[str]:
    """Published stations, with own rungs put in where their climb has them."""
    stops = list(_STATIONS)
    for climb in own:
        before = 0
        for rung in [*climb.gains, *climb.told]:
            if rung in stops:
                before = stops.index(rung)
            else:
                before += 1
                stops.insert(before, rung)
    return stops


def _listed(gains: Mapping[str, float]) -> str:
    return ", ".join(f"{rung} {gain:.1f}" for rung, gain in gains.items())


def _rungs(climb: Climb) -> str:
    rows = [
        (rung, f"{gain:.2f} ×", f"{climb.told[rung]:.2f} ×" if rung in climb.told else "–")
        for rung, gain in climb.gains.items()
    ]
    return parts.table(("up to this rung", "# measured", "# predicted"), rows)
