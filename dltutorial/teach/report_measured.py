"""What this machine measured of loaders, the ladder and the benchmarks, for ``dltutorial report``.

In: records, oldest first. Out: sections of the page. Of several machines or presets, the newest is shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dltutorial.observe import plots, timing
from dltutorial.solution import leaderboard
from dltutorial.teach import report_figures as figures
from dltutorial.teach.report_parts import Section, drawn, table, text

_LOADER = "loader: "
_COPY = "loader: copy"


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether a section here shows this record; the rest goes into the list of measurements."""
    return _is_loader(record) or record["chapter"] == "bench" or record["what"] == leaderboard.WHAT


def loaders(found: Sequence[dict]) -> list[Section]:
    """The loaders of chapter 03, slowest cause first; nothing where they were not measured."""
    newest = _newest([record for record in found if _is_loader(record)])
    rates = {what.removeprefix(_LOADER): row["value"] for what, row in newest.items() if what != _COPY}
    if len(rates) < 2:
        return []
    gain = max(rates.values()) / next(iter(rates.values()))
    copy = newest.get(_COPY, {}).get("value")
    body = drawn(_draw_loaders, rates, copy)
    return [Section("Loaders", f"The best loader is {gain:,.0f} × as fast as the naive one", body)]


def own_ladder(found: Sequence[dict]) -> str:
    """One sentence on the ladder that chapter 07 climbed here."""
    climbed = [r for r in found if r["what"] == "ladder_gain" and figures.is_ratio(r.get("value"))]
    if not climbed:
        return "not yet recorded; chapter 07 will measure it"
    gain, predicted = climbed[-1]["value"], climbed[-1].get("predicted")
    beside = f", {predicted:.1f} × predicted" if figures.is_ratio(predicted) else ""
    return f"{gain:.1f} × from baseline to best{beside} (chapter 07, preset {climbed[-1]['preset']})"


def solution(found: Sequence[dict]) -> list[Section]:
    """The leaderboard of one's own recipes, of the last task, machine and preset; nothing where none was run."""
    known = leaderboard.entries(found)
    if not known:
        return []
    last = max(known, key=lambda entry: entry.time).where
    board = leaderboard.table(entry for entry in known if entry.where == last)
    body = f'<p class="note">{text(last[0])}, preset {text(last[2])}, {text(last[1])}</p>'
    ranks = sum(row[2] != leaderboard.NOT_REACHED for row in board.rows)
    finding = f"{ranks} of {len(board.rows)} recipes reach the target with every seed"
    return [Section("Time to solution", finding, table(board.header, board.rows) + body)]


def benches(found: Sequence[dict]) -> list[Section]:
    """A table for each benchmark that ran; nothing where none did."""
    rows = [r for r in found if r["chapter"] == "bench" and figures.is_ratio(r.get("value"))]
    names = sorted({str(row.get("bench")) for row in rows})
    body = ""
    for name in names:
        newest = _newest([row for row in rows if str(row.get("bench")) == name])
        last = list(newest.values())[-1]
        body += f"<h3>bench {text(name)}, preset {text(last['preset'])}, {text(last['machine'])}</h3>"
        body += table(("what", "# median", "# predicted", "# measured / predicted"), map(_cells, newest.values()))
    return [Section("Benchmarks", f"{', '.join(names)}: medians beside predictions", body)] if names else []


def _is_loader(record: Mapping[str, Any]) -> bool:
    is_one = record["chapter"] == "03" and str(record["what"]).startswith(_LOADER)
    return is_one and figures.is_ratio(record.get("value"))


def _newest(rows: Sequence[dict]) -> dict[str, dict]:
    """What was measured → its last record, on the machine and in the preset of the last of all."""
    place = [rows[-1][key] for key in ("machine", "preset")] if rows else []
    return {row["what"]: row for row in rows if [row["machine"], row["preset"]] == place}


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    def shown(value: float) -> str:
        return timing.duration(value) if row.get("unit") == "s" else f"{value:,.4g} {row.get('unit', '')}"

    value, predicted = row["value"], row.get("predicted")
    if not figures.is_ratio(predicted):
        return str(row["what"]), shown(value), "–", "–"
    return str(row["what"]), shown(value), shown(predicted), f"{value / predicted:.2f}"


def _draw_loaders(rates: Mapping[str, float], copy: Any, to: figures.Sink) -> None:
    title = "Each cause of slow loading, removed one by one"
    alt = f"{title}. Samples per second: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    with plots.figure(title, alt, size=(8, 1.4 + 0.36 * len(rates)), to=to) as ax:
        ax.plot(list(rates.values()), range(len(rates)), "o-", color=plots.BLUE, ms=9)
        if figures.is_ratio(copy):
            ax.axvline(copy, color=plots.GREY, ls="--", lw=1.2, label="copying the bytes")
            ax.legend(loc="lower left")
        ax.set(xscale="log", xlabel="samples/s", ylim=(len(rates) - 0.5, -0.5))
        ax.set_yticks(range(len(rates)), list(rates))
