"""``dltutorial run``: the course's notebooks without a browser; a progress bar, a table, an index.

In: chapters by number or name, a preset, parameters. Out: ``runs/<time>/`` with the executed notebooks, their records
(``records.jsonl``), a summary (``run.json``) and an ``index.html``; a table; the exit status. Everything that can be
known to be wrong is told before anything runs. A chapter fails by an error, or by a fact that does not hold; the others
go on. A measurement that comes out otherwise is counted and fails nothing.
"""

import asyncio
import contextlib
import datetime
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dltutorial import config, limits, machine, node, paths
from dltutorial.course import notebooks, show, site
from dltutorial.course.execute import Executed, execute
from dltutorial.errors import CourseError, warn
from dltutorial.record import records
from dltutorial.record.table import Table
from dltutorial.train import command

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNS = {"finished": "✓", "failed": "✗", "not run": "·"}


@command.heard()  # that nobody reads the output, or that it has no room, costs no result
def run(
    wanted: Iterable[str] = (), preset: str = "auto", jobs: int = 1, parameters: Mapping[str, Any] | None = None,
    out: Path | None = None, timeout_s: float = 1800.0,
) -> int:  # fmt: skip
    """Run chapters and write what came of it; see the module's first lines.

    Args:
        wanted: chapters by number or name; none: all.
        preset: sizes; also the kernels' ``DLTUTORIAL_PRESET``.
        jobs: notebooks at a time.
        parameters: of the notebooks, as in their cell tagged ``parameters``.
        out: folder for the results; None: ``runs/<date and time>``.
        timeout_s: for each cell.

    Returns:
        0, 1 if a chapter failed; 130, 143, 129: Ctrl-C, SIGTERM, SIGHUP; kernels end, finished chapters and index stay.

    Raises:
        CourseError: unknown chapter or parameter, a folder that cannot be used, a login node; nothing has run then.
    """
    there = notebooks.chapters()
    selected = list(dict.fromkeys(notebooks.find(one, there) for one in wanted)) or there
    preset = config.preset(preset).name
    given = {path: notebooks.checked(path, parameters or {}) for path in selected}
    limits.refuse_too_many("--jobs", min(jobs, len(selected)))
    node.refuse_on_login("a whole chapter", "run it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial run 01'")
    paths.records_file()  # which may have been named wrongly
    Path.home()  # without one no kernel starts
    numbers = {path: str(notebooks.about(path)["chapter"]) for path in selected}  # it may be edited meanwhile
    of = {number: path for path, number in reversed(numbers.items())}  # the first that says so
    for path in [path for path in selected if of[numbers[path]] != path]:
        told = f"{path.name} says that it is chapter {numbers[path]}, as {of[numbers[path]].name} does"
        if len(selected) < len(there):
            raise CourseError(f"{told}, and their records would mix; run one at a time")
        warn(f"{told}: it is left out; run it by its name")
        del numbers[path], given[path]
    folder, done, came = new_folder(out), dict[Path, Executed](), list[int]()
    here = threading.current_thread() is threading.main_thread()  # no other may catch a signal; nohup ignores SIGHUP
    ends = {n: was for n in _ENDS if here and (was := signal.getsignal(n)) != signal.SIG_IGN}
    try:
        asyncio.run(_execute_all(given, numbers, preset, folder, jobs, timeout_s, done, ends, came))
        return _conclude(folder, preset, numbers, done)
    except (KeyboardInterrupt, asyncio.CancelledError):
        _conclude(folder, preset, numbers, done)
        told = f"interrupted: {len(done)} of {len(numbers)} chapters are finished"
        print(f"{told}; they are in {folder / 'index.html'}", file=sys.stderr)
        return 128 + (came or [signal.SIGINT])[0]
    finally:
        for number, handler in ends.items():
            signal.signal(number, handler)


def new_folder(out: Path | None) -> Path:
    """An empty folder for a run's results, made now. CourseError: it cannot be made, or holds something already."""
    target = Path(out or paths.runs_dir() / f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S.%f}").absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise CourseError(f"{target} is not empty; choose another folder for --out, or remove it")
        (target / "work").mkdir()
    except OSError as error:
        raise CourseError(f"cannot write to {target}: {error.strerror}; choose another folder with --out") from error
    return target


def environment(preset: str, folder: Path, jobs: int = 1) -> dict[str, str]:
    """What the kernels find in their environment: nothing asks the network or the learner."""
    env = {
        "DLTUTORIAL_PRESET": preset,
        "DLTUTORIAL_RECORDS": str(folder / "records.jsonl"),
        "DLTUTORIAL_CLASS": "off",  # a run of the whole course is nobody's place in it
        "WANDB_MODE": "offline",
        "PYTHONUTF8": "1",  # programs that a cell starts may print and write any character, whatever the locale
        "PYTHONIOENCODING": "utf-8",
        # Threads that spin while they wait cost a busy machine up to ten times more than they gain on a quiet one.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    for name in ("DLTUTORIAL_DATA", "DLTUTORIAL_RUNS"):
        if named := paths.of_variable(name):  # a relative path would move with the kernel's working directory
            env[name] = str(named.absolute())
    if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = str(max(1, machine.cores() // jobs))
    return env


def read_claims(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of a run's claims, by chapter."""
    found: dict[str, list[dict[str, Any]]] = {}
    with contextlib.suppress(CourseError):
        for record in records.read(folder / "records.jsonl"):
            if record["kind"] == "claim":
                found.setdefault(record["chapter"], []).append(record)
    return found


async def _execute_all(
    given: Mapping[Path, Mapping[str, Any]], numbers: Mapping[Path, str], preset: str, folder: Path, jobs: int,
    timeout_s: float, done: dict[Path, Executed], ends: Iterable[int], came: list[int],
) -> None:  # fmt: skip
    """Execute notebooks, some at once, each in a process of its own; when this is cancelled, those that run end."""
    from tqdm import tqdm

    begins = Counter(source.stem[:2] for source in given)  # the whole name is a folder's where two begin alike
    env, slots, running = environment(preset, folder, jobs), asyncio.Semaphore(jobs), list[str]()
    mine, loop, task = paths.records_file(), asyncio.get_running_loop(), asyncio.current_task()

    def end(number: int, _frame: object) -> None:
        came.append(number)
        if came.count(signal.SIGINT) > 5:  # an end of kernels that takes too long for somebody
            raise KeyboardInterrupt
        if task and not loop.is_closed():  # else the pages are being written, and it ends soon
            loop.call_soon_threadsafe(task.cancel)

    for number in ends:
        signal.signal(number, end)

    async def one(source: Path) -> None:
        work = folder / "work" / source.stem[: 2 if begins[source.stem[:2]] == 1 else None]
        output = work.parent / source.name
        async with slots:
            running.append(source.stem)
            bar.set_description(" ".join(running))
            try:
                work.mkdir(exist_ok=True)
                result = done[source] = await execute(source, output, work, given[source], env, timeout_s, bar.update)
            except OSError as error:
                result = done[source] = Executed(0.0, error=f"{error.filename}: {error.strerror}")
            running.remove(source.stem)
        with contextlib.suppress(OSError, ValueError):
            json.loads(output.read_bytes())
            output.replace(folder / source.name)  # it is whole
        for file in (folder / "records.jsonl", mine) if not result.error else ():
            with contextlib.suppress(CourseError):  # the run stands without it
                writer = records.Writer(numbers[source], preset, file)
                writer.write(source.stem, result.seconds, "s", kind="run", peak_bytes=result.peak_bytes)

    # Parameters are put into a cell of their own.
    n_cells = sum(len(notebooks.read(source)["cells"]) + bool(named) for source, named in given.items())
    with tqdm(total=n_cells, unit="cell", mininterval=0.1 if sys.stderr.isatty() else 30, dynamic_ncols=True) as bar:
        async with asyncio.TaskGroup() as group:
            for source in given:
                group.create_task(one(source))


def _conclude(folder: Path, preset: str, numbers: Mapping[Path, str], done: Mapping[Path, Executed]) -> int:
    """Write the summary and the pages, print the table and the failures; 1 if there is one."""
    for left in (folder / "work").glob("*.ipynb"):  # half executed: not to be mistaken for whole
        left.unlink()
    claims, rows, wrong = read_claims(folder), [], []
    for source, number in numbers.items():
        result = done.get(source)
        counts = Counter(claim["status"] for claim in claims.get(number, []))
        status = "not run" if result is None else "failed" if result.error or counts["failed"] else "finished"
        row = {"notebook": source.name, "chapter": number, "status": status, "claims": dict(counts)}
        rows.append(row | (asdict(result) if result else {}))
        if result and result.error:
            wrong.append(f"{source.name}, {f'cell {result.cell}' if result.cell else 'not to its end'}: {result.error}")
        failed = [claim for claim in claims.get(number, []) if claim["status"] == "failed"]
        wrong += [f"{source.name}: this claim does not hold: {one['what']} ({one['evidence']})" for one in failed]
    here = {"machine": machine.label(), "versions": machine.versions(), "date": f"{datetime.date.today()}"}
    about = here | {"preset": preset, "chapters": rows}
    try:
        paths.write_text(folder / "run.json", json.dumps(about, indent=1) + "\n")
        index = site.write(folder, about, claims)
    finally:
        print(_table(rows))
        print("\n".join(wrong), file=sys.stderr, end="\n" * bool(wrong))
    print(f"pages: {index}")
    return int(any(row["status"] != "finished" for row in rows))


def _table(rows: list[dict[str, Any]]) -> Table:
    """Chapter, seconds, peak memory and claims."""
    lines = []
    for row in rows:
        seconds = f"{row['seconds']:.1f}" if "seconds" in row else "–"
        memory = f"{row['peak_bytes'] / 1e9:.2f} GB" if row.get("peak_bytes") else "–"
        claims = [row["claims"].get(status, 0) for status in show.SIGNS]
        lines.append((f"{_SIGNS[row['status']]} {Path(row['notebook']).stem}", seconds, memory, *claims, row["status"]))
    return Table.of(("  chapter", "seconds", "peak memory", *(f"claims {s}" for s in show.SIGNS), "status"), lines)
