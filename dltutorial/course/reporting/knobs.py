"""One device: loaders (chapter 03), and what single knobs gained (02, 04, 05, 06).

In: records. Out: sections; published gains stand beside.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOADER, _COPY = "loader: ", "loader: copy"
# name → (chapter, what, kind of record): each a gain, in times as fast.
_GAINS = {
    "lean augmentation": ("02", "gain of lean augmentation", "measurement"),
    "bf16 in a whole step": ("04", "bf16_gain", "prediction"),
    "a compiled stencil": ("05", "compile_gain_stencil", "measurement"),
    "a compiled weighted sum": ("05", "compile_gain_weighted_sum", "measurement"),
    "a compiled perceptron": ("05", "compile_gain_perceptron", "measurement"),
    "replayed launches": ("06", "replay_gain", "prediction"),
}


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether a section here shows this record."""
    of_loader = record["chapter"] == "03" and record["what"].startswith(_LOADER)
    return of_loader or any(record["chapter"] == c and record["what"] == w for c, w, _ in _GAINS.values())


def loaders(found: Sequence[dict]) -> Section:
    """The loaders of chapter 03, slowest cause first, beside what was predicted of each."""
    newest = pick.named(pick.measured(found, "03", _LOADER))
    copy = newest.pop(_COPY, {}).get("value")
    rows = {what.removeprefix(_LOADER): row for what, row in newest.items()}
    if len(rows) < 2:
        body = parts.todo("dltutorial run 03", "half a minute") + _published()
        return Section("Loaders", "Loaders were not measured here yet", body, chapters="03", empty=True)
    rates = {name: row["value"] for name, row in rows.items()}
    gain = max(rates.values()) / next(iter(rates.values()))
    where = pick.place(next(iter(rows.values())))
    body = _loaders(rows, copy).html() + parts.note(f"Measured on {where}.") + _published()
    tile = (f"{gain:,.0f} ×", "as fast: the best loader beside the naive one")
    return Section("Loaders", f"The best loader is {gain:,.0f} × as fast as the naive one", body, (tile,), "03")


def _loaders(rows: Mapping[str, dict], copy: Any) -> charts.Chart:
    rates = {name: row["value"] for name, row in rows.items()}
    told = {name: row["predicted"] for name, row in rows.items() if pick.is_positive(row.get("predicted"))}
    title = "Each cause of slow loading, removed one by one"
    alt = f"{title}. Samples per second: " + ", ".join(
        f"{name} {rate:,.0f}" + (f" (predicted {told[name]:,.0f})" if name in told else "")
        for name, rate in rates.items()
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        names = list(rates)
        ax.plot(list(rates.values()), range(len(rates)), "o-", ms=8, label="measured")
        if told:
            ax.plot(list(told.values()), [names.index(n) for n in told], "s", mfc="none", mec=charts.INK, ms=11,
                    label="predicted from bytes and parts")  # fmt: skip
        if pick.is_positive(copy):
            ax.axvline(copy, color=plots.GREY, ls="--", lw=1.2, label="copying the bytes")
        charts.plain(ax, "x")
        ax.set(xlabel="samples/s", ylim=(len(rates) - 0.5, -0.5))
        ax.set_yticks(range(len(names)), [charts.label(name, 20 if narrow else 40) for name in names])
        charts.legend(ax, narrow)

    return charts.Chart(title, alt, draw, height=1.3 + 0.34 * len(rates), narrow=2.0 + 0.3 * len(rates))


def _published() -> str:
    """What faster input alone gained in the published ladders."""
    rows = {row["step"]: row for row in plots.reference("nersc_ladders")}
    gains = {e: float(rows["dali"][e]) / float(rows["baseline"][e]) for e in ("sc21", "sc22", "sc23", "sc24", "sc25")}
    words = ", ".join(f"{edition.upper()} {gain:.1f} ×" for edition, gain in gains.items())
    return parts.note(
        f"Published, whole training on one A100, from the first row to DALI: {words}. {parts.source('nersc_ladders')}"
    )


def gains(found: Sequence[dict]) -> Section:
    """What each knob gained alone, beside its prediction."""
    rows = {name: _newest(found, *where) for name, where in _GAINS.items()}
    rows = {name: row for name, row in rows.items() if row}
    graphs = plots.reference("cuda_graphs_published")
    said = ", ".join(f"{r['workload']} on {int(r['gpus']):,} GPUs {r['gain']} ×" for r in graphs)
    note = parts.note(f"Published gain of CUDA Graphs: {said}. {parts.source('cuda_graphs_published')}")
    if not rows:
        body = parts.todo("dltutorial run 02 04 05 06", "a minute or two") + note
        return Section("Knobs", "No single knob was measured here yet", body, chapters="02, 04 to 06", empty=True)
    best = max(rows, key=lambda name: rows[name]["value"])
    least = min(rows, key=lambda name: rows[name]["value"])
    finding = f"{best[:1].upper()}{best[1:]} gained {rows[best]['value']:.1f} ×"
    finding += f", {least} {rows[least]['value']:.1f} ×" if least != best else ""
    places = pick.joined([str(p) for p in pick.places(rows.values())])
    return Section("Knobs", finding, _gains(rows).html() + parts.note(f"Measured on {places}.") + note,
                   chapters="02, 04 to 06")  # fmt: skip


def _newest(found: Sequence[dict], chapter: str, what: str, kind: str) -> dict | None:
    rows = [r for r in pick.of(found, kind, chapter) if r["what"] == what and pick.is_positive(r.get("value"))]
    return rows[-1] if rows else None


def _told(row: Mapping[str, Any]) -> Any:
    return row.get("expected") if row["kind"] == "measurement" else row.get("model")


def _gains(rows: Mapping[str, dict]) -> charts.Chart:
    title = "A knob alone: what it gained, and what a model had promised"
    alt = "Times as fast: " + ", ".join(
        f"{name} {row['value']:.2f}" + (f" (predicted {_told(row):.2f})" if pick.is_positive(_told(row)) else "")
        for name, row in rows.items()
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        values = [row["value"] for row in rows.values()]
        ax.hlines(range(len(rows)), 1, values, color=plots.BLUE, lw=2.5)
        ax.plot(values, range(len(rows)), "o", color=plots.BLUE, ms=9, label="measured")
        told = [(_told(row), y) for y, row in enumerate(rows.values()) if pick.is_positive(_told(row))]
        if told:
            ax.plot(*zip(*told, strict=True), "s", mfc="none", mec=charts.INK, ms=12, label="predicted")
        ax.axvline(1, color=plots.GREY, ls="--", lw=1.2)
        top = 1.4 * max([2, *values, *(value for value, _ in told)])
        low = 0.8 * min([1, *values, *(value for value, _ in told)])
        charts.times(ax, "x", tuple(t for t in (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 100) if low <= t <= top))
        ax.set(xlabel="times as fast", xlim=(low, top), ylim=(len(rows) - 0.5, -0.5))
        ax.set_yticks(range(len(rows)), [charts.label(name, 20) if narrow else name for name in rows])
        charts.legend(ax, narrow)

    return charts.Chart(title, alt, draw, height=1.2 + 0.36 * len(rows), narrow=1.9 + 0.34 * len(rows))
