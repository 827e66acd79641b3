"""Time to solution: the learner's leaderboard, and how well it was predicted (chapter 15).

In: records. Out: a section. Only recipes of one task, machine and preset are ranked together.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dltutorial import machine
from dltutorial.convergence import leaderboard
from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.profile.timing import duration
from dltutorial.record import plots
from dltutorial.record.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MEDIAN = "median seconds: "


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether the section here shows this record."""
    of_recipe = record["chapter"] == "15" and record["what"].startswith(_MEDIAN)
    return of_recipe or record["what"] == leaderboard.WHAT


def section(found: Sequence[dict]) -> Section:
    """A board for each task, machine and preset, the newest open; predictions; what large runs cost."""
    known = leaderboard.entries(found)
    chart = _predicted(found)
    if not known:
        body = parts.todo("dltutorial run 15", "a minute") + (chart.html() if chart else "") + _gpt3()
        return Section("Time to solution", "No recipe was raced to a target yet", body, chapters="15", empty=True)
    newest = sorted(known, key=lambda entry: entry.time, reverse=True)
    body, finding, tiles = "", "", ()
    for where in dict.fromkeys(entry.where for entry in newest):
        entries = [entry for entry in known if entry.where == where]
        board = leaderboard.table(entries)
        task = where[0].removeprefix("Task(").removesuffix(")")
        shown = parts.note(f"{task}; preset {where[2]}, {where[1]}") + _board(board)
        if not body:
            n_there = sum(row[2] != leaderboard.NOT_REACHED for row in board.rows)
            finding = f"{n_there} of {len(board.rows)} recipes reach the target with every seed"
            finding += f", the best in {board.rows[0][2]}" if n_there else ""
            tiles, body = _tile(entries), shown + (chart.html() if chart else "")
        else:
            body += parts.folded(f"Another board: {where[1]}, preset {where[2]}", shown)
    return Section("Time to solution", finding, body + _gpt3(), tiles, "15")


def _board(board: Table) -> str:
    """The board without columns in which nothing is known."""
    known = [n for n in range(len(board.header)) if any(row[n] != machine.UNKNOWN for row in board.rows)]
    rows = ([row[n] for n in known] for row in board.rows)
    return parts.table([board.header[n] for n in known], rows)


def _tile(entries: Sequence[leaderboard.Entry]) -> tuple[tuple[str, str], ...]:
    there = [entry for rank, entry in leaderboard.ranked(entries) if rank]
    if not there:
        return ()
    apart = there[-1].seconds / there[0].seconds
    against = f", {apart:.1f} × sooner than the slowest" if apart > 1.05 else ""
    return ((duration(there[0].seconds), f"to the target quality: the best recipe{against}"),)


def _predicted(found: Sequence[dict]) -> charts.Chart | None:
    rows = [r for r in pick.named(pick.measured(found, "15", _MEDIAN)).values() if pick.is_positive(r.get("predicted"))]
    if not rows:
        return None
    times = {r["what"].removeprefix(_MEDIAN): (r["value"], r["predicted"]) for r in rows}
    off = sorted(pick.factors(told / s for s, told in times.values()))
    title = f"Predicted from short measurements, the time to the target is off by a factor of {off[len(off) // 2]:.1f}"
    alt = "Seconds to the target: " + "; ".join(
        f"{name} {duration(s)}, predicted {duration(told)}" for name, (s, told) in times.items()
    )

    def draw(ax: "Axes", narrow: bool) -> None:
        for y, (s, told) in enumerate(times.values()):
            ax.plot([s, told], [y, y], color=plots.GREY, lw=1.2)
        ax.plot([s for s, _ in times.values()], range(len(times)), "o", ms=9, label="measured, median of seeds")
        ax.plot([told for _, told in times.values()], range(len(times)), "s", mfc="none", mec=charts.INK, ms=11,
                label="predicted")  # fmt: skip
        ax.set_yticks(range(len(times)), [charts.label(name, 22 if narrow else 40) for name in times])
        ax.set(xlabel="seconds to the target", xlim=(0, None), ylim=(len(times) - 0.5, -0.5))
        charts.legend(ax, narrow)

    return charts.Chart(title, alt, draw, height=1.2 + 0.34 * len(times), narrow=2.0 + 0.32 * len(times))


def _gpt3() -> str:
    """What the largest published run took."""
    rows = [(r["what"], f"{float(r['value']):,.4g}", r["unit"], r["source"]) for r in plots.reference("gpt3_training")]
    shown = parts.table(("training GPT-3", "# value", "unit", "source"), rows) + parts.note(
        parts.source("gpt3_training")
    )
    return parts.folded("Beside it, as published: what training GPT-3 took", shown)
