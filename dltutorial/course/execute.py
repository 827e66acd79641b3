"""One notebook, executed by papermill in a process of its own.

In: a notebook. Out: the executed one, signed so that JupyterLab trusts its widgets and frames, and :class:`Executed`
with seconds, bytes, and the one line that says what went wrong. Loads no torch.
"""

import asyncio
import contextlib
import importlib
import json
import math
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from dltutorial import advice


@dataclass(frozen=True)
class Executed:
    """How it went: ``error`` is empty, or one line; ``cell`` counts from 1, all kinds of cells, in the source.

    ``peak_bytes`` is the most memory of the kernel and its descendants together; what they share is counted once.
    """

    seconds: float
    peak_bytes: int = 0
    cell: int | None = None
    error: str = ""


def quick_imports() -> None:
    """Called before ``import nbformat``, spares it a second for a grammar of addresses that nobody uses here."""
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # jsonschema does without


async def execute(
    source: Path, output: Path, work: Path, parameters: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None, timeout_s: float = 1800.0, on_cell: Callable[[], object] = lambda: None,
) -> Executed:  # fmt: skip
    """Execute a notebook; its process, and so its kernel, ends when this is cancelled, and when this process ends.

    Args:
        source: the notebook.
        output: where it goes, with as much as was executed, whatever happens in it.
        work: working directory of the kernel; it must exist.
        parameters: put into the cell after the one tagged ``parameters``.
        env: variables of the kernel, beside those of this process.
        timeout_s: for each cell.
        on_cell: called as each cell is about to run.
    """
    # The kernel chooses its own backend of matplotlib, and no session is live.
    around = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "JPY_SESSION_NAME")}
    result, n_begun = None, 0
    with open(output.with_suffix(".log"), "ab") as log:
        process = await asyncio.create_subprocess_exec(  # in a session of its own: a terminal's Ctrl-C is its owner's
            *(sys.executable, "-P", "-m", "dltutorial.course.execute"), env={**around, **(env or {})},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        words = [str(source), str(output), str(work), dict(parameters or {}), timeout_s]
        process.stdin.write(f"{json.dumps(words, default=str)}\n".encode())
        async for line in process.stdout:
            told = json.loads(line)
            if told is None:
                n_begun += 1
                on_cell()
            else:
                result = Executed(**told)
    finally:
        process.stdin.close()  # it sees that, and ends
        await process.wait()
    why = f"the process that ran it ended with exit code {process.returncode}, in the code cell {n_begun}"
    return result or Executed(0.0, error=why)


def _main() -> None:
    """In the notebook's process: read what to do, tell each cell and then the result, a line of JSON each."""
    words = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_owner, daemon=True).start()
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the kernel and its processes print goes to the log
    try:
        result = _execute_here(lambda: print("null", file=tell), *words)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or "it is half written, as on a full disk"
        result = Executed(0.0, error=f"what was executed cannot be kept: {why}; make room, then again")
    print(json.dumps(asdict(result)), file=tell)


def _end_with_owner() -> None:
    os.read(0, 1)  # the owner writes no more: this returns when it has ended
    for process in psutil.Process().children(recursive=True):  # the kernel, and what its cells wait for
        with contextlib.suppress(psutil.Error):
            process.kill()
    _end_clusters()
    os._exit(1)


def _execute_here(tell: Callable, source: str, output: str, work: str, parameters: dict, timeout_s: float) -> Executed:
    quick_imports()
    papermill: Any = importlib.import_module("papermill")
    started: list[int] = []
    peak_bytes, seen = [0], set[Any]()

    def starts(cell: Any, cell_index: int) -> None:
        started.append(cell_index)
        tell()

    threading.Thread(target=_watch_memory, args=(peak_bytes, seen), daemon=True).start()
    error, began_s = "", time.monotonic()
    how: dict[str, Any] = {
        "cwd": work, "kernel_name": "python3", "progress_bar": False, "execution_timeout": math.ceil(timeout_s),
        "shutdown_kernel": "immediate", "on_cell_start": starts,
    }  # fmt: skip
    files = [path.replace("{", "{{").replace("}", "}}") for path in (source, output)]
    try:
        try:
            done = papermill.execute_notebook(*files, parameters, **how)
        except RuntimeError as problem:  # another program has taken one of the ports that were chosen for it
            if started or "Kernel died before replying" not in str(problem):
                raise
            done = papermill.execute_notebook(*files, parameters, **how)
        if any(item.get("ename") == "SystemExit" for cell in done.cells for item in cell.get("outputs", ())):
            error = "SystemExit: no cell after this one has run; leave sys.exit out"  # papermill calls that success
    except Exception as problem:
        error = _one_line(problem, timeout_s)
        _end_ranks(seen)
        _end_clusters()
    seconds = time.monotonic() - began_s
    return Executed(seconds, peak_bytes[0], _finish(Path(output), started[-1] if started else None, error), error)


def _end_clusters() -> None:
    """A kernel that is killed leaves its pocket cluster."""
    from dltutorial.errors import CourseError
    from dltutorial.launch import pocket

    with contextlib.suppress(CourseError):
        pocket.end_left()


def _end_ranks(seen: set) -> None:
    """A launcher that is killed with its kernel leaves its ranks, each in a session of its own."""
    for process in list(seen):
        with contextlib.suppress(psutil.Error):
            if process.is_running() and "TORCHELASTIC_RUN_ID" in process.environ():
                process.kill()


def _watch_memory(peak_bytes: list[int], seen: set) -> None:
    """Keep in ``peak_bytes[0]`` the most that this process's descendants ever held together, and them in ``seen``."""
    while True:
        own, shared = 0, [0]
        here = psutil.Process().children(recursive=True)
        seen.update(here)
        for process in here:
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                shared.append(getattr(memory, "shared", 0))  # told on Linux only
                own += memory.rss - shared[-1]
        peak_bytes[0] = max(peak_bytes[0], own + max(shared))
        time.sleep(0.2)


def _one_line(problem: Any, timeout_s: float) -> str:
    """What a learner needs to know of an exception of papermill or nbclient."""
    name, found = type(problem).__name__, None
    if name == "PapermillExecutionError":
        text = f"{problem.ename}: {problem.evalue}".rstrip(": ")
        found = advice.of_words(problem.ename, str(problem.evalue))
    elif name == "CellTimeoutError":
        text = f"the cell took longer than {timeout_s:g} s; give it more with --timeout"
    elif name == "DeadKernelError":
        text = "the kernel died; for want of memory (try a smaller preset), or by its own code"
    else:
        text = f"{name}: {problem}"
    line = next((line.strip() for line in text.splitlines() if line.strip()), name)
    return line[:500] + (f" → {found.do}" if found else "")


def _finish(output: Path, index: int | None, error: str) -> int | None:
    """Sign the executed notebook, without papermill's error cells and host paths; returns the cell of the error."""
    if not output.is_file():
        return None
    import nbformat
    from nbformat.sign import NotebookNotary

    notebook = nbformat.read(output, 4)
    for key in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(key, None)
    cells = notebook.cells = [c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", ())]
    number = None
    if error and index is not None:
        if not any(item.output_type == "error" for cell in cells for item in cell.get("outputs", ())):
            told = nbformat.v4.new_output("error", ename="NotFinished", evalue=error, traceback=[error])
            cells[index].outputs.append(told)
        number = 1 + sum("injected-parameters" not in cell.metadata.get("tags", ()) for cell in cells[:index])
    nbformat.write(notebook, output)
    with contextlib.suppress(OSError, sqlite3.Error):  # such as a home that may not be written
        notary = NotebookNotary()
        notary.sign(nbformat.read(output, 4))
        notary.store.close()
    return number


if __name__ == "__main__":
    _main()
