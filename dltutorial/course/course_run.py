"""A run of the course: notebooks in processes of their own, a progress bar, a table, an index.

In: a :class:`Plan`, checked beforehand by ``notebooks.run``. Out: the run's folder, and the exit status. A chapter
fails by an error, or by a fact that does not hold; the others go on. A measurement that comes out otherwise is counted
and fails nothing. On Ctrl-C all kernels end; finished chapters and the index stay.
"""

import contextlib
import json
import multiprocessing as mp
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dltutorial import machine, paths
from dltutorial.course import exercises
from dltutorial.course.execute import Job, Result, execute
from dltutorial.errors import CourseError
from dltutorial.launch import forkserver
from dltutorial.record import records
from dltutorial.record.table import Table

_GRACE_S = 10.0
_SIGNS = MappingProxyType({"finished": "✓", "failed": "✗", "not run": "·"})
_STATUSES = ("shown", "not shown here", "otherwise", "failed")


@dataclass(frozen=True)
class Plan:
    """What to run: ``parameters`` by notebook, in order."""

    parameters: Mapping[Path, Mapping[str, Any]]
    preset: str
    jobs: int
    folder: Path
    timeout_s: float


def go(plan: Plan) -> int:
    """Run it all; returns 0, 1 if a chapter failed, 130 if interrupted."""
    done: dict[Path, Result] = {}
    interrupted = False
    try:
        jobs = {source: _job(plan, source) for source in plan.parameters}
        _execute_all(jobs, plan.jobs, lambda source, result: _keep(plan, jobs[source], result, done))
    except KeyboardInterrupt:
        interrupted = True
    return _conclude(plan, done, interrupted)


def environment(plan: Plan) -> dict[str, str]:
    """What the kernels find in their environment: nothing asks the network or the learner."""
    env = {
        "DLTUTORIAL_PRESET": plan.preset,
        "DLTUTORIAL_RECORDS": str(plan.folder / "records.jsonl"),
        "DLTUTORIAL_CLASS": "off",  # a run of the whole course is nobody's place in it
        "WANDB_MODE": "offline",
        # Threads that spin while they wait cost a busy machine up to ten times more than they gain on a quiet one.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    for name in ("DLTUTORIAL_DATA", "DLTUTORIAL_RUNS", "XDG_CACHE_HOME"):
        if os.environ.get(name):  # a relative path would move with the kernel's working directory
            env[name] = str(Path(os.environ[name]).absolute())
    if plan.jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = str(max(1, machine.cores() // plan.jobs))
    return env


def _job(plan: Plan, source: Path) -> Job:
    work = plan.folder / "work" / source.stem[:2]
    work.mkdir(exist_ok=True)
    output = work.parent / f"{source.stem}.ipynb"  # moved to the run's folder when it is whole
    return Job(source, output, work, plan.parameters[source], environment(plan), plan.timeout_s)


def _execute_all(jobs: Mapping[Path, Job], at_once: int, on_result: Callable[[Path, Result], None]) -> None:
    """Execute all jobs, some at once, each in a process of its own; on an interrupt, end those that run."""
    from tqdm import tqdm

    n_cells = {source: len(exercises.read(source)["cells"]) for source in jobs}
    waiting, running = deque(jobs), dict[Connection, tuple[Path, mp.Process, int]]()
    tty = sys.stderr.isatty()
    bar = tqdm(total=sum(n_cells.values()), unit="cell", mininterval=0.1 if tty else 30, dynamic_ncols=True)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                source = waiting.popleft()
                process, connection = _start(jobs[source])
                running[connection] = (source, process, 0)
                bar.set_description(" ".join(path.stem for path, _, _ in running.values()))
            for connection in wait(list(running)):
                source, process, cell = running[connection]
                told = _receive(connection, process)
                if isinstance(told, int):
                    bar.update(told - 1 - cell)
                    running[connection] = (source, process, told - 1)
                else:
                    del running[connection]
                    bar.update(n_cells[source] - cell)
                    process.join()
                    on_result(source, told)
    finally:
        _end([process for _, process, _ in running.values()])
        bar.close()


def _start(job: Job) -> tuple[mp.Process, Connection]:
    context = mp.get_context("spawn")  # a fork would take our threads' locks and pipes along
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, theirs), daemon=False)
    resource_tracker.ensure_running()  # else start() does it, and lets Ctrl-C through again
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is ours; the child inherits this
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    except BaseException:
        if process.pid is not None:
            _end([process])
        raise
    theirs.close()
    return process, ours


def _receive(connection: Connection, process: mp.Process) -> int | Result:
    """The number of the cell that starts, or how it ended."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        process.join()
        return Result(0.0, 0, None, f"the process that ran it ended with exit code {process.exitcode}")


def _work(job: Job, connection: Connection) -> None:
    """In the process of one notebook: out of reach of the terminal's Ctrl-C, its own output in a file."""
    os.setsid()
    forkserver.die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops a Ctrl-C that came before
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(job.output.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    connection.send(execute(job, connection.send))


def _end(processes: list[mp.Process]) -> None:
    """Ask them to end, which ends their kernels; then make them."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(_GRACE_S)
        process.kill()
        process.join()


def _keep(plan: Plan, job: Job, result: Result, done: dict[Path, Result]) -> None:
    """A chapter is over, well or not: its notebook moves to its place, its time goes to the records."""
    with contextlib.suppress(FileNotFoundError):
        job.output.replace(plan.folder / job.output.name)
    done[job.source] = result
    if not result.error:
        for file in (plan.folder / "records.jsonl", paths.records_file()):
            with contextlib.suppress(CourseError):  # the run stands without it
                writer = records.Writer(_chapter(job.source), plan.preset, file)
                writer.write(job.source.stem, result.seconds, "s", kind="run", peak_bytes=result.peak_bytes)


def _conclude(plan: Plan, done: Mapping[Path, Result], interrupted: bool) -> int:
    """Write the summary and the pages, print the table and the failures."""
    for left in (plan.folder / "work").glob("*.ipynb"):  # half executed: not to be mistaken for whole
        left.unlink()
    claims = read_claims(plan.folder)
    rows = []
    for source in plan.parameters:
        result, mine = done.get(source), claims.get(_chapter(source), [])
        counts = Counter(claim["status"] for claim in mine)
        status = "not run" if result is None else "failed" if result.error or counts["failed"] else "finished"
        row = {"notebook": source.name, "chapter": _chapter(source), "status": status, "claims": dict(counts)}
        wrong = [f"{claim['what']} ({claim['evidence']})" for claim in mine if claim["status"] == "failed"]
        rows.append(row | {"wrong": wrong} | (asdict(result) if result else {}))
    about = {"preset": plan.preset, "machine": machine.label(), "versions": machine.versions(), "chapters": rows}
    paths.write_text(plan.folder / "run.json", json.dumps(about, indent=1) + "\n")
    print(_table(rows))
    from dltutorial.course import site

    index = site.write(plan.folder)
    for row in rows:
        if row.get("error"):
            where = f"cell {row['cell']}" if row["cell"] else "before its first cell"
            print(f"{row['notebook']}, {where}: {row['error']}", file=sys.stderr)
        for claim in row["wrong"]:
            print(f"{row['notebook']}: this claim does not hold: {claim}", file=sys.stderr)
    if interrupted:
        print(f"interrupted: {len(done)} of {len(rows)} chapters are finished; they are in {index}", file=sys.stderr)
        return 130
    print(f"pages: {index}")
    return 1 if any(row["status"] != "finished" for row in rows) else 0


def _chapter(source: Path) -> str:
    about = exercises.read(source)["metadata"].get("dltutorial", {})
    return str(about.get("chapter", source.stem[:2]))


def read_claims(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of a run's claims, by chapter."""
    found: dict[str, list[dict[str, Any]]] = {}
    with contextlib.suppress(CourseError):
        for record in records.read(folder / "records.jsonl"):
            if record["kind"] == "claim":
                found.setdefault(record["chapter"], []).append(record)
    return found


def _table(rows: list[dict[str, Any]]) -> Table:
    """Chapter, seconds, peak memory and claims."""
    lines = []
    for row in rows:
        ran = "seconds" in row
        seconds = f"{row['seconds']:.1f}" if ran else "–"
        memory = f"{row['peak_bytes'] / 1e9:.2f} GB" if ran and row["peak_bytes"] else "–"
        claims = [row["claims"].get(status, 0) for status in _STATUSES]
        name = f"{_SIGNS[row['status']]} {Path(row['notebook']).stem}"
        lines.append((name, seconds, memory, *claims, row["status"]))
    return Table.of(("  chapter", "seconds", "peak memory", *(f"claims {s}" for s in _STATUSES), "status"), lines)
