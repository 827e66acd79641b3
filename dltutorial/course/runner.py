"""Execute the course's notebooks without a browser. This is the command ``dltutorial run``.

The input is a list of notebooks (numbers or names), a preset and parameters. The output is a folder ``runs/<time>/``
with the executed notebooks, their records (the folder ``records``), a summary (``run.json``) and an ``index.html``.
Further notebooks are in the subfolder ``further``. The command shows a progress bar, prints a table, and returns an
exit status.

A chapter fails if a cell raises an error, or if a claim that is no measurement does not hold. The other chapters still
run. If a claim about a measurement does not hold, it is counted as "different here", and the chapter does not fail.
"""

import datetime
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dltutorial import config, machine, node, paths
from dltutorial.course import execute, notebooks, show, site
from dltutorial.course.execute import Executed
from dltutorial.errors import CourseError
from dltutorial.record import records
from dltutorial.record.table import Table

_SIGNS = {"finished": "✓", "failed": "✗", "not run": "·"}


def run(
    wanted: Iterable[str],
    preset: str,
    jobs: int | None,
    parameters: Mapping[str, Any],
    out: Path | None,
    timeout_s: float,
) -> int:
    """Run chapters and write the results.

    A chapter whose claims compare times says so in its metadata (``measures_time``). Without ``jobs``, such a chapter
    runs alone, and the other chapters run two at a time if there are two cores.

    Args:
        wanted: notebooks by number or name, such as "03" or "03-further". Without any, all notebooks run.
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
    given = {path: notebooks.checked(path, parameters) for path in selected}
    node.refuse_on_login("a whole chapter", "run it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial run 01'")
    folder = new_folder(out)
    results: dict[Path, Executed] = {}
    try:
        _execute_all(given, preset, folder, jobs, timeout_s, results)
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


def _execute_all(
    given: Mapping[Path, Mapping[str, Any]],
    preset: str,
    folder: Path,
    jobs: int | None,
    timeout_s: float,
    results: dict[Path, Executed],
) -> None:
    """Execute notebooks, some of them at the same time, and put the result of each notebook into ``results``.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C. The notebooks that were running have ended.
    """
    from tqdm import tqdm

    with tqdm(total=len(given), unit="notebook", dynamic_ncols=True) as bar:
        for sources, at_a_time in _batches(list(given), jobs):
            env = environment(preset, folder, at_a_time)
            with execute.pool(at_a_time) as pool:
                futures = {}
                for source in sources:
                    output = folder / notebooks.place(source)
                    work = folder / "work" / notebooks.number(source)
                    order = (source, output, work, given[source], env, timeout_s)
                    futures[pool.submit(execute.execute, *order)] = source
                try:
                    for future in as_completed(futures):
                        results[futures[future]] = _result(future)
                        bar.set_postfix_str(f"{futures[future].stem} ended")
                        bar.update()
                except KeyboardInterrupt:
                    pool.shutdown(wait=False, cancel_futures=True)
                    execute.end_all()
                    raise


def _result(future: Future[Executed]) -> Executed:
    """Return the result of a notebook, also if its process was killed."""
    try:
        return future.result()
    except BrokenProcessPool:
        return Executed(0.0, error="its process was killed; the machine may have run out of memory")


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
    images = notebooks.folder() / "images"
    if images.is_dir():
        shutil.copytree(images, folder / "images")  # for JupyterLab; the pages have the images inside
    print(f"pages: {site.write(folder, about, claims)}")
    for row in rows:
        if row["status"] != "not run" and not row["error"]:
            writer = records.Writer(row["chapter"], preset)
            name = Path(row["notebook"]).stem
            writer.write(name, row["seconds"], "s", kind="run", peak_bytes=row["peak_bytes"])
    return int(any(row["status"] != "finished" for row in rows))


def _row(source: Path, result: Executed | None, claims: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the entry of a chapter in the summary. A chapter that has not run has no times and no error."""
    number = notebooks.about(source)["chapter"]
    counts = Counter(claim["status"] for claim in claims.get(number, []))
    row = {
        "notebook": notebooks.place(source),
        "chapter": number,
        "status": _status(result, counts),
        "claims": dict(counts),
    }
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
        name = row["notebook"].removesuffix(".ipynb")
        lines.append((f"{_SIGNS[row['status']]} {name}", seconds, memory, *claims, row["status"]))
    claim_columns = [f"claims {status}" for status in show.SIGNS]
    return Table.of(("  chapter", "seconds", "peak memory", *claim_columns, "status"), lines)
