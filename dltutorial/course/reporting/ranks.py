"""Several ranks: what it costs to agree, and to start (chapters 08 to 10).

In: records. Out: a section. Published all-reduces stand beside.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dltutorial.course.reporting import charts, parts, pick
from dltutorial.course.reporting.parts import Section
from dltutorial.profile import timing
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEP = "ddp_step_s"
# (chapter, what, kind) → how the number reads.
_FACTS = {
    ("08", "ring_over_server", "prediction"): "Four ranks sum a few KiB: a ring takes {} × as long as a server",
    ("08", "byte_price_ratio", "measurement"): "A byte of a large all-reduce costs {} × one of a small",
    ("09", "naive_over_ddp", "prediction"): "The naive step takes {} × as long as torch DDP's",
    ("10", "first_update_s", "measurement"): "From sbatch to the first update of a job: {} s",
}


def is_shown(record: Mapping[str, Any]) -> bool:
    """Whether the section here shows this record."""
    return record["what"] == _STEP or (record["chapter"], record["what"], record["kind"]) in _FACTS


def section(found: Sequence[dict]) -> Section:
    """Steps of each way to average gradients, facts of messages and of jobs."""
    facts = [(words, _newest(found, *where)) for where, words in _FACTS.items()]
    facts = [(words.format(f"{row['value']:.3g}"), row) for words, row in facts if row]
    steps = [r for r in pick.measured(found, "09", _STEP) if isinstance(r.get("wrapper"), str)]
    published = _published()
    if not steps and not facts:
        body = parts.todo("dltutorial run 08 09 10", "two minutes") + published
        return Section("Ranks", "No ranks have met here yet", body, chapters="08 to 10", empty=True)
    body, tiles = "", ()
    finding = facts[0][0] if facts else "Ranks met here"
    if steps:
        where = pick.places(steps)[0]
        newest = {row["wrapper"]: row for row in pick.at(steps, where)}
        finding, chart = _steps(newest)
        body = chart.html() + parts.note(f"Measured on {where}.")
    rows = [(row["chapter"], words, _predicted(row), str(pick.place(row))) for words, row in facts]
    body += parts.table(("chapter", "what", "# predicted", "where"), rows) + published
    return Section("Ranks", finding, body, tiles, "08 to 10")


def _newest(found: Sequence[dict], chapter: str, what: str, kind: str) -> dict | None:
    rows = [r for r in pick.of(found, kind, chapter) if r["what"] == what and pick.is_positive(r.get("value"))]
    return rows[-1] if rows else None


def _predicted(row: Mapping[str, Any]) -> str:
    told = row.get("model", row.get("predicted"))
    return f"{told:.3g}" if pick.is_positive(told) else "–"


def _steps(newest: Mapping[str, dict]) -> tuple[str, charts.Chart]:
    step_s = {name: row["value"] for name, row in newest.items()}
    slow, quick = max(step_s, key=step_s.__getitem__), min(step_s, key=step_s.__getitem__)
    n = next(iter(newest.values())).get("world_size")
    finding = f"With {slow} gradients a step takes {step_s[slow] / step_s[quick]:.1f} × as long as with {quick}"
    title = f"Ways to average gradients among {n} ranks: fewer messages, and overlapped with computing"
    alt = "Seconds a step: " + ", ".join(f"{name} {timing.duration(s)}" for name, s in step_s.items())

    def draw(ax: "Axes", narrow: bool) -> None:
        names = list(step_s)
        ax.barh(range(len(names)), [1e3 * step_s[name] for name in names], height=0.55, color=plots.BLUE)
        for y, name in enumerate(names):
            ax.annotate(timing.duration(step_s[name]), (1e3 * step_s[name], y), xytext=(5, 0), va="center",
                        textcoords="offset points")  # fmt: skip
        ax.set_yticks(range(len(names)), [charts.label(name, 18) for name in names])
        ax.set(xlabel="milliseconds a step", ylim=(len(names) - 0.5, -0.5), xlim=(0, 1.18e3 * step_s[slow]))
        ax.grid(axis="y", visible=False)

    return finding, charts.Chart(title, alt, draw, height=1.0 + 0.42 * len(step_s), narrow=1.2 + 0.4 * len(step_s))


def _published() -> str:
    rows = [
        (
            r["machine"],
            r["gpu"],
            f"{r['nccl_s']} s",
            f"{r['mpi_s']} s",
            f"{float(r['mpi_s']) / float(r['nccl_s']):.1f} ×",
        )
        for r in plots.reference("nccl_vs_mpi")
    ]
    head = ("published all-reduce on", "GPU", "# NCCL", "# MPI", "# MPI / NCCL")
    return parts.table(head, rows) + parts.note(parts.source("nccl_vs_mpi"))
