"""One notebook, executed by papermill in a process of its own.

In: a :class:`Job`. Out: the executed notebook, signed so that JupyterLab trusts its widgets and frames, and a
:class:`Result` with seconds, bytes, and the one line that says what went wrong. Loads no torch.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dltutorial import advice

_SAMPLE_S = 0.2


@dataclass(frozen=True)
class Job:
    """What to execute, and how.

    Attributes:
        source, output: the notebook, and where the executed one goes.
        work: working directory of the kernel; it must exist.
        parameters: put into the cell after the one tagged ``parameters``.
        timeout_s: for each cell.
    """

    source: Path
    output: Path
    work: Path
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 1800.0


@dataclass(frozen=True)
class Result:
    """How it went: ``error`` is empty, or one line; ``cell`` counts from 1, all kinds of cells, in the source.

    ``peak_bytes`` is the most memory of the kernel and its descendants together; pages they share count more than once.
    """

    seconds: float
    peak_bytes: int = 0
    cell: int | None = None
    error: str = ""


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Keep ``import nbformat`` from compiling a grammar for two seconds, to check a kind of address nobody uses here.

    jsonschema takes its check of internationalised addresses from ``rfc3987_syntax`` where that can be imported;
    inside this block it cannot, unless it already was.
    """
    name = "rfc3987_syntax"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def execute(
    job: Job,
    env: Mapping[str, str] | None = None,
    on_cell: Callable[[int], None] = lambda number: None,
    on_start: Callable[[subprocess.Popen], None] = lambda process: None,
) -> Result:
    """Execute a notebook; whatever happens in it, what was executed is kept in ``job.output``.

    Args:
        job: what to execute.
        env: variables of the kernel, beside those of this process.
        on_cell: called with the number of each cell that is about to run, from 1.
        on_start: called with the process, which whoever is interrupted may end. It ends with its owner, too.
    """
    words = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(job).items()}
    result = None
    with open(job.output.with_suffix(".log"), "ab") as log:
        # Its own session: a Ctrl-C of the terminal is the owner's. A module on its own path: not the kernel's folder.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dltutorial.course.execute"], env={**_surroundings(), **(env or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            on_start(process)
            with contextlib.suppress(BrokenPipeError):  # it has ended before it read: told below
                process.stdin.write(json.dumps(words) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                told = json.loads(line)
                if isinstance(told, int):
                    on_cell(told)
                else:
                    result = Result(**told)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
    return result or Result(0.0, error=f"the process that ran it ended with exit code {process.returncode}")


def _surroundings() -> dict[str, str]:
    """This process's variables; but the kernel chooses its own backend of matplotlib, and no session is live."""
    return {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "JPY_SESSION_NAME")}


def _main() -> None:
    """In the notebook's process: read the job, tell each cell and then the result, a line of JSON each."""
    words = json.loads(sys.stdin.readline())
    job = Job(Path(words.pop("source")), Path(words.pop("output")), Path(words.pop("work")), **words)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the kernel and its processes print goes to the log
    result = _execute_here(job, lambda number: print(number, file=tell))
    print(json.dumps(asdict(result)), file=tell)


def _end_with_owner() -> None:
    os.read(0, 1)  # the owner writes no more: this returns when it has ended
    os._exit(1)


def _execute_here(job: Job, on_cell: Callable[[int], None]) -> Result:
    with quick_imports():
        papermill: Any = importlib.import_module("papermill")
    index: int | None = None

    def starts(cell: Any, cell_index: int) -> None:
        nonlocal index
        index = cell_index
        on_cell(cell_index + 1)

    error, began_s, memory = "", time.monotonic(), _Memory()
    memory.start()
    try:
        papermill.execute_notebook(
            _escape(job.source), _escape(job.output), dict(job.parameters), kernel_name="python3", cwd=str(job.work),
            progress_bar=False, execution_timeout=job.timeout_s, shutdown_kernel="immediate", on_cell_start=starts,
        )  # fmt: skip
    except Exception as problem:
        error = _one_line(problem, job.timeout_s)
    seconds = time.monotonic() - began_s
    return Result(seconds, memory.peak_bytes, _finish(job.output, index, error), error)


def _escape(path: Path) -> str:
    """papermill takes braces in a path for its own."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _one_line(problem: Any, timeout_s: float) -> str:
    """What a learner needs to know of an exception of papermill or nbclient."""
    name, found = type(problem).__name__, None
    if name == "PapermillExecutionError":
        text = f"{problem.ename}: {problem.evalue}".rstrip(": ")
        found = advice.of_words(problem.ename, str(problem.evalue))
    elif name == "CellTimeoutError":
        text = f"the cell took longer than {timeout_s:g} s; give it more with --timeout"
    elif name == "DeadKernelError":
        text = "the kernel died; was it killed for want of memory? Try a smaller preset"
    else:
        text = f"{name}: {problem}"
    line = next((line.strip() for line in text.splitlines() if line.strip()), name)
    return line[:500] + (f" → {found.do}" if found else "")


def _finish(output: Path, index: int | None, error: str) -> int | None:
    """Sign the executed notebook, without papermill's error cells and host paths; returns the cell of the error."""
    if not output.is_file():
        return None
    with quick_imports():
        import nbformat
        from nbformat.sign import NotebookNotary
    notebook = nbformat.read(output, 4)
    for key in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(key, None)
    cells = notebook.cells = [c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", ())]
    number = None
    if error and index is not None:
        if not any(item.output_type == "error" for cell in cells for item in cell.get("outputs", ())):
            cells[index].outputs.append(
                nbformat.v4.new_output("error", ename="NotFinished", evalue=error, traceback=[error])
            )
        number = 1 + sum("injected-parameters" not in cell.metadata.get("tags", ()) for cell in cells[:index])
    nbformat.write(notebook, output)
    notary = NotebookNotary()
    notary.sign(nbformat.read(output, 4))
    notary.store.close()
    return number


class _Memory(threading.Thread):
    """Watches the memory of all this process's descendants."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0

    def run(self) -> None:
        """Sample for as long as the process lives."""
        import psutil

        while True:
            total = 0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            self.peak_bytes = max(self.peak_bytes, total)
            time.sleep(_SAMPLE_S)


if __name__ == "__main__":
    _main()
