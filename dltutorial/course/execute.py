"""Execute notebooks by papermill (https://papermill.readthedocs.io) in a pool of processes.

The input is a notebook. The output is the executed notebook, and :class:`Executed` with seconds, bytes, and one line
that says what went wrong. The executed notebook is signed, so JupyterLab trusts its widgets and frames. This module
does not load torch.

    with execute.pool(2) as pool:
        result = pool.submit(execute.execute, source, output, work).result()

A notebook ends together with everything that it has started: the kernel, its ranks and its Slurm cluster. They end at
the time limit of a cell, and :func:`end_all` ends them after Ctrl-C.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dltutorial import paths
from dltutorial.errors import CourseError

_DEATH = "the kernel died; it may have run out of memory (try a smaller preset), or its own code ended it"


@dataclass(frozen=True)
class Executed:
    """The result of a notebook.

    Attributes:
        seconds: from the start of the kernel to its end.
        peak_bytes: the most memory of the kernel and its descendants together. Memory that they share counts once.
        cell: the cell that failed, or None. All kinds of cells of the source are counted, from 1.
        error: one line that says what went wrong, or an empty string.
    """

    seconds: float
    peak_bytes: int = 0
    cell: int | None = None
    error: str = ""


def quick_imports() -> None:
    """Make ``import nbformat`` a second faster. Call this before nbformat is imported.

    Without this module, jsonschema does not load a grammar of addresses, which the course does not use.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


def pool(n_processes: int) -> ProcessPoolExecutor:
    """Return a pool of processes, each of which executes one notebook at a time.

    Ctrl-C does not end these processes, so that the process that made the pool can end them with their kernels.
    """
    spawn = multiprocessing.get_context("spawn")
    ignore_ctrl_c = (signal.SIGINT, signal.SIG_IGN)
    return ProcessPoolExecutor(n_processes, mp_context=spawn, initializer=signal.signal, initargs=ignore_ctrl_c)


def execute(
    source: Path,
    output: Path,
    work: Path,
    parameters: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 1800.0,
) -> Executed:
    """Execute a notebook. This function changes the environment of its process, so call it in a process of a pool.

    Args:
        source: The notebook.
        output: The executed notebook. It is written at the end, even if a cell failed. What the kernel's programs
            print outside of cells goes to a file beside it that ends in ``.log``.
        work: Working folder of the kernel. While the notebook runs, it is in a file beside this folder.
        parameters: Values for a new cell after the one with the tag ``parameters``.
        env: Environment variables of the kernel, in addition to those of this process.
        timeout_s: Time limit of each cell in seconds.
    """
    # The kernel chooses its own backend of matplotlib, and belongs to no session of JupyterLab.
    for name in ("MPLBACKEND", "JPY_SESSION_NAME"):
        os.environ.pop(name, None)
    os.environ.update(env or {})
    try:
        work.mkdir(parents=True, exist_ok=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output.with_suffix(".log"), "ab") as log:
            os.dup2(log.fileno(), 1)  # the kernel inherits both
            os.dup2(log.fileno(), 2)
        return _execute(source, output, work, dict(parameters or {}), timeout_s)
    except OSError as error:
        return Executed(0.0, error=f"cannot write {output}: {error.strerror}; make room, then run it again")
    except CourseError as error:
        return Executed(0.0, error=str(error))
    finally:
        _partial(work).unlink(missing_ok=True)


def end_all() -> None:
    """End the processes of the pools of this process, and everything that they have started."""
    processes = []
    for worker in multiprocessing.active_children():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(worker.pid)
            processes += [process, *process.children(recursive=True)]
    _kill(processes)


def _partial(work: Path) -> Path:
    """Return the path to which papermill writes a notebook while it runs."""
    return work.with_name(f"{work.name}.ipynb")


def _execute(source: Path, output: Path, work: Path, parameters: dict[str, Any], timeout_s: float) -> Executed:
    """Execute the notebook, and write the executed notebook.

    Raises:
        OSError, CourseError: The executed notebook cannot be written.
    """
    quick_imports()
    import papermill

    started: list[int] = []  # the numbers of the cells that have started, from 0

    def execute_once() -> None:
        papermill.execute_notebook(
            str(source),
            str(_partial(work)),
            parameters,
            cwd=str(work),
            kernel_name="python3",
            progress_bar=False,
            start_timeout=180,  # seconds; a kernel starts slowly on a busy machine
            execution_timeout=math.ceil(timeout_s),
            shutdown_kernel="immediate",
            on_cell_start=lambda cell, cell_index: started.append(cell_index),
        )

    error = ""
    memory = _Memory()
    start_s = time.monotonic()
    try:
        try:
            execute_once()
        except RuntimeError as problem:
            # Another program may have taken one of the ports that were chosen for the kernel.
            if started or "Kernel died before replying" not in str(problem):
                raise
            execute_once()
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno:  # such as a full disk; a cell's time limit has no number
            raise
        error = _one_line(problem, timeout_s)
    finally:
        memory.stop.set()
        _kill(memory.descendants)
    seconds = time.monotonic() - start_s
    cell = _finish(_partial(work), output, started, error)
    return Executed(seconds, memory.peak_bytes, cell, error)


def _kill(processes: Iterable[psutil.Process]) -> None:
    """End processes, such as ranks of torchrun that have sessions of their own, and the clusters of dead kernels."""
    from dltutorial.launch import pocket

    for process in list(processes):
        with contextlib.suppress(psutil.Error):
            process.kill()
    pocket.end_left()


@dataclass
class _Memory:
    """A thread that measures the memory of the descendants of this process, until ``stop`` is set.

    Ranks are forks of one process, so they share many pages. Linux divides a shared page by the number of its users
    (proportional set size). This takes milliseconds per process. Therefore it is read only when a quick upper limit is
    larger than before.

    Attributes:
        peak_bytes: the most memory that they had together at one time.
        descendants: all descendants since the thread has started.
    """

    peak_bytes: int = 0
    descendants: set[psutil.Process] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        highest = 0.0
        while not self.stop.wait(0.2):
            processes = psutil.Process().children(recursive=True)
            self.descendants.update(processes)
            limit = _resident_bytes(processes)
            if limit > 1.02 * highest:
                highest = limit
                used = _proportional_bytes(processes) if sys.platform == "linux" else limit
                self.peak_bytes = max(self.peak_bytes, used)


def _resident_bytes(processes: list[psutil.Process]) -> int:
    """Return an upper limit of the memory of the processes. It counts pages of forks more than once."""
    own = 0
    shared = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            shared_here = getattr(memory, "shared", 0)  # files in memory; known on Linux only
            own += memory.rss - shared_here
            shared = max(shared, shared_here)
    return own + shared


def _proportional_bytes(processes: list[psutil.Process]) -> int:
    """Return the memory of the processes, in which each page counts once. Only Linux knows it."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def _one_line(problem: Any, timeout_s: float) -> str:
    """Return what a learner needs to know of an exception of papermill or nbclient, in one line."""
    from dltutorial.course.programs import what_to_do

    name = type(problem).__name__
    todo = ""
    if name == "PapermillExecutionError":
        text = f"{problem.ename}: {problem.evalue}".rstrip(": ")
        todo = what_to_do(problem.ename, str(problem.evalue))
    elif name == "CellTimeoutError":
        text = f"the cell took longer than {timeout_s:g} s; give it more with --timeout"
    elif name == "DeadKernelError":
        text = _DEATH
    else:
        text = f"{name}: {problem}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first_line = lines[0][:500]
    return f"{first_line} → {todo}" if todo else first_line


def _finish(partial: Path, output: Path, started: list[int], error: str) -> int | None:
    """Write the executed notebook without papermill's own cells and without paths of this machine, and sign it.

    Returns:
        The number of the cell that failed, or None.
    """
    import nbformat
    from nbformat.sign import NotebookNotary

    if not partial.is_file():
        return None
    notebook = nbformat.read(partial, 4)
    for key in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(key, None)
    cells = [cell for cell in notebook.cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", ())]
    notebook.cells = cells
    number = None
    if error and started:
        index = started[-1]
        if not any(item.output_type == "error" for cell in cells for item in cell.get("outputs", ())):
            shown = nbformat.v4.new_output("error", ename="NotFinished", evalue=error, traceback=[error])
            cells[index].outputs.append(shown)
        number = 1 + sum("injected-parameters" not in cell.metadata.get("tags", ()) for cell in cells[:index])
    paths.write_text(output, nbformat.writes(notebook) + "\n")
    notary = NotebookNotary()
    notary.sign(nbformat.read(output, 4))
    notary.store.close()
    return number
