"""Execute the course's notebooks without a browser. This is the command ``dltutorial run``.

The input is a list of chapters (numbers or names), a preset and parameters. The output is a folder ``runs/<time>/``
with the executed notebooks, their records (the folder ``records``), a summary (``run.json``) and an ``index.html``. The
command shows a progress bar, prints a table, and returns an exit status.

A chapter fails if a cell raises an error, or if a claim that is no measurement does not hold. The other chapters still
run. If a claim about a measurement does not hold, it is counted as "otherwise", and the chapter does not fail.
"""

import asyncio
import datetime
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dltutorial import config, machine, node, paths
from dltutorial.course import notebooks, show, site
from dltutorial.course.execute import Executed, execute
from dltutorial.errors import CourseError
from dltutorial.record import records
from dltutorial.record.table import Table

_SIGNS = {"finished": "✓", "failed": "✗", "not run": "·"}


def run(
    wanted: Iterable[str] = (),
    preset: str = "auto",
    jobs: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    out: Path | None = None,
    timeout_s: float = 1800.0,
) -> int:
    """Run chapters and write the results.

    A chapter whose claims compare times says so in its metadata (``measures_time``). Without ``jobs``, such a chapter
    runs alone, and the other chapters run two at a time if there are two cores.

    Args:
        wanted: chapters by number or name. Without any, all chapters run.
        preset: the name of the preset. The kernels read it from ``DLTUTORIAL_PRESET``.
        jobs: how many notebooks run at a time. None makes the choice described above.
        parameters: values that replace those in the cells with the tag ``parameters``.
        out: folder for the results. None means ``runs/<date and time>``.
        timeout_s: time limit of each cell in seconds.

    Returns:
        0 if all chapters finished, 1 if one failed, and 130 after Ctrl-C. Ctrl-C ends the kernels, but the results of
        the finished chapters stay.

    Raises:
        CourseError: A chapter or parameter is unknown, the folder cannot be used, or this is a login node. In
            these cases no chapter has run.
    """
    available = notebooks.chapters()
    requested = [notebooks.find(name, available) for name in wanted]
    selected = list(dict.fromkeys(requested)) or available  # a chapter that is named twice runs once
    preset = config.preset(preset).name
    given = {path: notebooks.checked(path, parameters or {}) for path in selected}
    node.refuse_on_login("a whole chapter", "run it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial run 01'")
    folder = new_folder(out)
    results: dict[Path, Executed] = {}
    try:
        asyncio.run(_execute_all(given, preset, folder, jobs, timeout_s, results))
    except KeyboardInterrupt:
        _conclude(folder, preset, selected, results)
        finished = f"{len(results)} of {len(selected)} chapters are finished"
        print(f"interrupted: {finished}; they are in {folder / 'index.html'}", file=sys.stderr)
        return 130
    return _conclude(folder, preset, selected, results)


def new_folder(out: Path | None) -> Path:
    """Make an empty folder for a run's results.

    Args:
        out: the folder. None means a new folder in the runs folder, named by date and time.

    Returns:
        The absolute path of the folder.

    Raises:
        CourseError: The folder cannot be made, or it is not empty.
    """
    target = Path(out or paths.runs_dir() / f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S.%f}").absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise CourseError(f"{target} is not empty; choose another folder for --out")
        (target / "work").mkdir()
    except OSError as error:
        raise CourseError(f"cannot write to {target}: {error.strerror}; choose another folder with --out") from error
    return target


def environment(preset: str, folder: Path, jobs: int = 1) -> dict[str, str]:
    """Return the environment variables of the kernels. With them, no cell needs the network or asks the learner."""
    env = {
        "DLTUTORIAL_PRESET": preset,
        "DLTUTORIAL_RECORDS": str(folder / "records"),
        "WANDB_MODE": "offline",
        # Threads that spin while they wait cost a busy machine up to ten times more than they gain on an idle one.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    for name in ("DLTUTORIAL_DATA", "DLTUTORIAL_RUNS"):
        path = paths.of_variable(name)
        if path:
            # The kernel has another working folder, in which a relative path would name another folder.
            env[name] = str(path.absolute())
    if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = str(max(1, machine.cores() // jobs))
    return env


def read_claims(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the records of a run's claims. The keys are the numbers of the chapters."""
    claims: dict[str, list[dict[str, Any]]] = {}
    for record in records.read(folder / "records"):
        if record["kind"] == "claim":
            claims.setdefault(record["chapter"], []).append(record)
    return claims


async def _execute_all(
    given: Mapping[Path, Mapping[str, Any]],
    preset: str,
    folder: Path,
    jobs: int | None,
    timeout_s: float,
    results: dict[Path, Executed],
) -> None:
    """Execute notebooks, some of them at the same time, and put the result of each notebook into ``results``.

    If this task is cancelled, the notebooks that are running are stopped.
    """
    from tqdm import tqdm

    running: list[str] = []
    # A notebook with parameters gets one more cell, which holds them.
    n_cells = sum(len(notebooks.read(source)["cells"]) + bool(values) for source, values in given.items())
    with tqdm(total=n_cells, unit="cell", mininterval=0.1 if sys.stderr.isatty() else 30, dynamic_ncols=True) as bar:

        async def execute_one(source: Path, slots: asyncio.Semaphore, env: Mapping[str, str]) -> None:
            work = folder / "work" / source.stem[:2]
            async with slots:
                running.append(source.stem)
                bar.set_description(" ".join(running))
                try:
                    work.mkdir(exist_ok=True)
                    output = folder / source.name
                    result = await execute(source, output, work, given[source], env, timeout_s, bar.update)
                except OSError as error:
                    result = Executed(0.0, error=f"{error.filename}: {error.strerror}")
                results[source] = result
                running.remove(source.stem)

        for sources, at_a_time in _batches(list(given), jobs):
            slots = asyncio.Semaphore(at_a_time)
            env = environment(preset, folder, at_a_time)
            async with asyncio.TaskGroup() as group:
                for source in sources:
                    group.create_task(execute_one(source, slots, env))


def _batches(sources: list[Path], jobs: int | None) -> list[tuple[list[Path], int]]:
    """Return pairs of a list of notebooks and how many of them run at a time. The pairs run one after the other."""
    if jobs:
        return [(sources, jobs)]
    timed = [source for source in sources if notebooks.about(source).get("measures_time")]
    others = [source for source in sources if source not in timed]
    return [(timed, 1), (others, min(2, machine.cores()))]


def _conclude(folder: Path, preset: str, selected: list[Path], results: Mapping[Path, Executed]) -> int:
    """Print the table and the failures, and write summary, pages and records. Return 1 if not all finished, else 0."""
    claims = read_claims(folder)
    rows = [_row(source, results.get(source), claims) for source in selected]
    print(_table(rows))
    for row in rows:
        for line in _failures(row, claims.get(row["chapter"], [])):
            print(f"{row['notebook']}{line}", file=sys.stderr)
    about = {
        "machine": machine.label(),
        "versions": machine.versions(),
        "date": f"{datetime.date.today()}",
        "preset": preset,
        "chapters": rows,
    }
    paths.write_text(folder / "run.json", json.dumps(about, indent=1) + "\n")
    print(f"pages: {site.write(folder, about, claims)}")
    for row in rows:
        if row["status"] != "not run" and not row["error"]:
            _record(row, preset, folder / "records")
            _record(row, preset, paths.records_dir())
    return int(any(row["status"] != "finished" for row in rows))


def _row(source: Path, result: Executed | None, claims: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the entry of a chapter in the summary. A chapter that has not run has no times and no error."""
    number = notebooks.about(source)["chapter"]
    counts = Counter(claim["status"] for claim in claims.get(number, []))
    row = {"notebook": source.name, "chapter": number, "status": _status(result, counts), "claims": dict(counts)}
    if result is not None:
        row |= asdict(result)
    return row


def _failures(row: Mapping[str, Any], claims: list[dict[str, Any]]) -> list[str]:
    """Return a line for the error of a chapter, and one for each of its claims that failed."""
    lines = []
    if row.get("error"):
        place = f"cell {row['cell']}" if row["cell"] else "not to its end"
        lines.append(f", {place}: {row['error']}")
    for claim in claims:
        if claim["status"] == "failed":
            lines.append(f": this claim does not hold: {claim['what']} ({claim['evidence']})")
    return lines


def _record(row: Mapping[str, Any], preset: str, folder: Path) -> None:
    """Record the time and the memory of a chapter in a folder of records."""
    writer = records.Writer(row["chapter"], preset, folder)
    name = Path(row["notebook"]).stem
    writer.write(name, row["seconds"], "s", kind="run", peak_bytes=row["peak_bytes"])


def _status(result: Executed | None, counts: Mapping[str, int]) -> str:
    """Return the status of a chapter, which is a key of ``_SIGNS``."""
    if result is None:
        return "not run"
    return "failed" if result.error or counts.get("failed") else "finished"


def _table(rows: list[dict[str, Any]]) -> Table:
    """Return a table with the seconds, the peak memory and the claims of each chapter."""
    lines = []
    for row in rows:
        seconds = f"{row['seconds']:.1f}" if "seconds" in row else "–"
        memory = f"{row['peak_bytes'] / 1e9:.2f} GB" if row.get("peak_bytes") else "–"
        claims = [row["claims"].get(status, 0) for status in show.SIGNS]
        lines.append((f"{_SIGNS[row['status']]} {Path(row['notebook']).stem}", seconds, memory, *claims, row["status"]))
    claim_columns = [f"claims {status}" for status in show.SIGNS]
    return Table.of(("  chapter", "seconds", "peak memory", *claim_columns, "status"), lines)
