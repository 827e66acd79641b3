"""Training runs: the forecast's error relative to persistence, against updates.

In: what training runs wrote beside the records. Out: a section.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dltutorial.course.reporting import charts, parts
from dltutorial.course.reporting.parts import Section
from dltutorial.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIO = "valid/rmse_ratio_to_persistence"
_N_RUNS = 8  # the newest: more lines than that cannot be told apart
_DEPTHS = ("*/progress.jsonl", "*/*/progress.jsonl", "*/*/*/progress.jsonl")  # never a whole disk


@dataclass(frozen=True)
class Run:
    """One training run: how it ended, (update, error ratio) of its course, samples/s at its end."""

    status: str
    curve: tuple[tuple[int, float], ...]
    rate: str


def section(folders: Iterable[Path]) -> Section:
    """The newest runs that have scores."""
    runs = _runs(folders)
    if not runs:
        body = parts.todo("dltutorial train", "or chapter 01")
        return Section("Forecast", "No training run has scores yet", body, chapters="01", empty=True)
    best = min(value for run in runs.values() for _, value in run.curve[-1:])
    rows = [
        (name, parts.status(run.status), str(run.curve[-1][0]), f"{run.curve[-1][1]:.3f}", run.rate)
        for name, run in runs.items()
    ]
    body = _chart(runs).html() + parts.table(("run", "", "# updates", "# RMSE / persistence", "# samples/s"), rows)
    body += parts.note(f"The newest {_N_RUNS} runs with scores at most; a mean over the channels.")
    finding = f"The best forecast has {best:.2f} of persistence's error"
    return Section("Forecast", finding, body, ((f"{best:.2f}", "of persistence's error: the best forecast"),), "01")


def _runs(folders: Iterable[Path]) -> dict[str, Run]:
    """Name → run, oldest first."""
    files = {file.resolve(): file for folder in folders for depth in _DEPTHS for file in Path(folder).glob(depth)}
    newest = sorted(files.values(), key=lambda file: file.stat().st_mtime)[-4 * _N_RUNS :]
    found: dict[str, Run] = {}
    for file in newest:
        try:
            run = _read(file)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            continue  # half written or damaged: no basis for a figure
        if run.curve:
            name = file.parent.name
            found[f"{file.parent.parent.name}/{name}" if name in found else name] = run
    return dict(list(found.items())[-_N_RUNS:])


def _read(file: Path) -> Run:
    seen = [json.loads(line) for line in _whole_lines(file)]
    curve = tuple((int(r["step"]), float(r["scores"][RATIO])) for r in seen if r["scores"])
    status = json.loads((file.parent / "status.json").read_text(encoding="utf-8"))["status"]
    return Run(str(status), curve, parts.value(seen[-1]["samples_per_s"]))


def _whole_lines(file: Path) -> Iterator[str]:
    """A file's lines without a last one that is still being written."""
    yield from file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


def _chart(runs: Mapping[str, Run]) -> charts.Chart:
    ends = {name: run.curve[-1][1] for name, run in runs.items()}
    n_better = sum(end < 1 for end in ends.values())
    title = f"{n_better} of {len(ends)} {'run ends' if len(ends) == 1 else 'runs end'} with less error than persistence"
    alt = "Validation error divided by persistence's, against updates. Last values: " + ", ".join(
        f"{name} {end:.2f}" for name, end in ends.items()
    )
    top = 1.08 * max(1, *(value for run in runs.values() for _, value in run.curve))

    def draw(ax: "Axes", narrow: bool) -> None:
        for (name, run), marker in zip(runs.items(), charts.MARKERS, strict=False):
            ax.plot(*zip(*run.curve, strict=True), marker=marker, label=f"{charts.label(name, 30)}: {ends[name]:.2f}")
        ax.axhline(1, color=plots.GREY, ls="--", lw=1.2, label="persistence")
        ax.set(xlabel="updates", ylabel="RMSE / RMSE of persistence", xlim=(0, None), ylim=(0, top))
        charts.legend(ax, narrow)

    return charts.Chart(title, alt, draw, narrow=3.6 + 0.2 * len(runs))
