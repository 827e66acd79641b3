"""Execute one notebook by papermill (https://papermill.readthedocs.io) in a process of its own.

The input is a notebook. The output is the executed notebook, and :class:`Executed` with seconds, bytes, and one line
that says what went wrong. The executed notebook is signed, so JupyterLab trusts its widgets and frames. This module
does not load torch.

Because of the separate process, a notebook ends together with everything that it has started: the kernel, its ranks and
its Slurm cluster. They end at Ctrl-C, at the time limit of a cell, and when the process that ordered the notebook ends.
"""

import asyncio
import contextlib
import importlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from dltutorial import advice, paths
from dltutorial.errors import CourseError


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


async def execute(
    source: Path,
    output: Path,
    work: Path,
    parameters: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 1800.0,
    on_cell: Callable[[], object] = lambda: None,
) -> Executed:
    """Execute a notebook. Its kernel ends when this coroutine is cancelled, and when this process ends.

    Args:
        source: the notebook.
        output: the executed notebook. It is written at the end, even if a cell failed. What the kernel's programs
            print outside of cells goes to a file beside it that ends in ``.log``.
        work: working folder of the kernel, which must exist.
        parameters: values for a new cell after the one with the tag ``parameters``.
        env: environment variables of the kernel, in addition to those of this process.
        timeout_s: time limit of each cell in seconds.
        on_cell: this function is called before each cell.

    Returns:
        The result. Its ``error`` also says if the process ended without a result.
    """
    # The kernel chooses its own backend of matplotlib, and belongs to no session of JupyterLab.
    inherited = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "JPY_SESSION_NAME")}
    result = None
    n_cells = 0
    with open(output.with_suffix(".log"), "ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "dltutorial.course.execute"),
            env={**inherited, **(env or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal reaches this process only, which then ends the other
        )
    assert process.stdin is not None
    assert process.stdout is not None
    order = {
        "source": str(source),
        "output": str(output),
        "work": str(work),
        "parameters": dict(parameters or {}),
        "timeout_s": timeout_s,
    }
    try:
        process.stdin.write(f"{json.dumps(order, default=str)}\n".encode())
        async for line in process.stdout:
            message = json.loads(line)
            if message == "cell":
                n_cells += 1
                on_cell()
            else:
                result = Executed(**message)
    finally:
        process.stdin.close()  # the process notices that its input is closed, and ends
        await process.wait()
        _partial(output).unlink(missing_ok=True)
    if result is None:
        return Executed(0.0, error=f"its process ended with exit code {process.returncode}, in code cell {n_cells}")
    return result


def _partial(output: Path) -> Path:
    """Return the path to which papermill writes a notebook while it runs."""
    return output.with_name(f".{output.name}")


def _main() -> None:
    """Read the order, and write a line of JSON for each cell and one for the result. This is the separate process."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_owner, daemon=True).start()
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the kernel and its processes print goes to the log

    def on_cell() -> None:
        print('"cell"', file=messages)

    try:
        result = _execute_here(on_cell, **order)
    except OSError as error:
        result = Executed(0.0, error=f"cannot write {order['output']}: {error.strerror}; make room, then run it again")
    except CourseError as error:
        result = Executed(0.0, error=str(error))
    print(json.dumps(asdict(result)), file=messages)


def _end_with_owner() -> None:
    """Wait until the process that gave the order closes its end of the pipe or is killed; then end everything."""
    os.read(0, 1)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    _end_clusters()
    os._exit(1)


def _execute_here(
    on_cell: Callable[[], None], source: str, output: str, work: str, parameters: dict[str, Any], timeout_s: float
) -> Executed:
    """Execute the notebook in a kernel that this process starts.

    Raises:
        OSError, CourseError: The executed notebook cannot be written.
    """
    quick_imports()
    papermill: Any = importlib.import_module("papermill")
    started: list[int] = []
    peak_bytes = [0]
    descendants: set[psutil.Process] = set()

    def on_cell_start(cell: Any, cell_index: int) -> None:
        started.append(cell_index)
        on_cell()

    def execute_once() -> None:
        papermill.execute_notebook(
            source,
            str(_partial(Path(output))),
            parameters,
            cwd=work,
            kernel_name="python3",
            progress_bar=False,
            start_timeout=180,  # seconds; a kernel starts slowly on a busy machine
            execution_timeout=math.ceil(timeout_s),
            shutdown_kernel="immediate",
            on_cell_start=on_cell_start,
        )

    threading.Thread(target=_watch_memory, args=(peak_bytes, descendants), daemon=True).start()
    error = ""
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
        _end_all(descendants)
        _end_clusters()
    seconds = time.monotonic() - start_s
    cell = _finish(Path(output), started[-1] if started else None, error)
    return Executed(seconds, peak_bytes[0], cell, error)


def _end_all(processes: set[psutil.Process]) -> None:
    """End the processes that a killed kernel has left, such as ranks of torchrun, which have sessions of their own."""
    for process in list(processes):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _end_clusters() -> None:
    """End the pocket cluster of a kernel that was killed."""
    from dltutorial.launch import pocket

    with contextlib.suppress(CourseError):
        pocket.end_left()


def _watch_memory(peak_bytes: list[int], descendants: set[psutil.Process]) -> None:
    """Put into ``peak_bytes[0]`` the most memory that the descendants of this process had together at one time.

    Args:
        peak_bytes: a list of one number, which grows.
        descendants: a set to which every process is added.
    """
    while True:
        own = 0
        shared = 0
        processes = psutil.Process().children(recursive=True)
        descendants.update(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                shared_here = getattr(memory, "shared", 0)  # known on Linux only
                own += memory.rss - shared_here
                shared = max(shared, shared_here)
        peak_bytes[0] = max(peak_bytes[0], own + shared)
        time.sleep(0.2)


def _one_line(problem: Any, timeout_s: float) -> str:
    """Return what a learner needs to know of an exception of papermill or nbclient, in one line."""
    name = type(problem).__name__
    advice_for_cell = None
    if name == "PapermillExecutionError":
        text = f"{problem.ename}: {problem.evalue}".rstrip(": ")
        advice_for_cell = advice.of_words(problem.ename, str(problem.evalue))
    elif name == "CellTimeoutError":
        text = f"the cell took longer than {timeout_s:g} s; give it more with --timeout"
    elif name == "DeadKernelError":
        text = "the kernel died; it may have run out of memory (try a smaller preset), or its own code ended it"
    else:
        text = f"{name}: {problem}"
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), name)[:500]
    if advice_for_cell is None:
        return first_line
    return f"{first_line} → {advice_for_cell.do}"


def _finish(output: Path, index: int | None, error: str) -> int | None:
    """Write the executed notebook without papermill's own cells and without paths of this machine, and sign it.

    Args:
        output: the executed notebook.
        index: the cell that ran last, or None if none has run.
        error: what went wrong, or an empty string.

    Returns:
        The number of the cell that failed, or None.
    """
    if not _partial(output).is_file():
        return None
    import nbformat
    from nbformat.sign import NotebookNotary

    notebook = nbformat.read(_partial(output), 4)
    for key in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(key, None)
    cells = [cell for cell in notebook.cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", ())]
    notebook.cells = cells
    number = None
    if error and index is not None:
        if not any(item.output_type == "error" for cell in cells for item in cell.get("outputs", ())):
            shown = nbformat.v4.new_output("error", ename="NotFinished", evalue=error, traceback=[error])
            cells[index].outputs.append(shown)
        number = 1 + sum("injected-parameters" not in cell.metadata.get("tags", ()) for cell in cells[:index])
    paths.write_text(output, nbformat.writes(notebook) + "\n")
    notary = NotebookNotary()
    notary.sign(nbformat.read(output, 4))
    notary.store.close()
    return number


if __name__ == "__main__":
    _main()
