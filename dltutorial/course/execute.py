"""One notebook, executed by papermill in a kernel of its own.

In: a :class:`Job`. Out: the executed notebook, signed so that JupyterLab trusts its widgets and frames, and a
:class:`Result` with seconds, bytes, and the one line that says what went wrong. Loads no torch.
"""

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dltutorial import advice
from dltutorial.course import exercises

_SAMPLE_S = 0.2
_LONGEST_LINE = 500
_ERROR_TAG = "papermill-error-cell-tag"


@dataclass(frozen=True)
class Job:
    """What to execute, and how.

    Attributes:
        source, output: the notebook, and where the executed one goes.
        work: working directory of the kernel; it must exist.
        parameters: put into the cell after the one tagged ``parameters``.
        env: environment of the kernel.
        timeout_s: for each cell.
    """

    source: Path
    output: Path
    work: Path
    parameters: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 1800.0


@dataclass(frozen=True)
class Result:
    """How it went: ``error`` is empty, or one line; ``cell`` counts from 1, all kinds of cells, in the source."""

    seconds: float
    peak_bytes: int
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
    sys.modules[name] = None
    try:
        yield
    finally:
        del sys.modules[name]


def import_papermill() -> Any:
    """The papermill package, imported the quick way."""
    with quick_imports():
        return importlib.import_module("papermill")


def execute(job: Job, on_cell: Callable[[int], None] = lambda number: None) -> Result:
    """Execute a notebook; whatever happens in it, what was executed is kept in ``job.output``.

    Args:
        job: what to execute.
        on_cell: called with the number of each cell that is about to run, from 1.
    """
    papermill = import_papermill()
    current: list[int] = []

    def starts(cell: Any, cell_index: int) -> None:
        current.append(cell_index)
        on_cell(cell_index + 1)

    error, began_s = "", time.monotonic()
    with _environment(job.env), _Memory() as memory:
        try:
            papermill.execute_notebook(
                _escape(job.source), _escape(job.output), dict(job.parameters), kernel_name="python3",
                cwd=str(job.work), progress_bar=False, execution_timeout=job.timeout_s,
                shutdown_kernel="immediate", on_cell_start=starts,
            )  # fmt: skip
        except Exception as problem:
            error = _one_line(problem, job.timeout_s)
    seconds = time.monotonic() - began_s
    _finish(job.output, current[-1] if current else None, error)
    cell = current[-1] + 1 - _added(job, current[-1]) if error and current else None
    return Result(seconds, memory.peak_bytes, cell, error)


def _added(job: Job, index: int) -> bool:
    """Whether papermill's own cell, which follows the one tagged ``parameters``, stands before the cell ``index``."""
    cells = exercises.read(job.source)["cells"] if job.parameters else []
    tagged = (number for number, cell in enumerate(cells) if "parameters" in cell["metadata"].get("tags", ()))
    return bool(job.parameters) and index > next(tagged, -1)


def _escape(path: Path) -> str:
    """papermill takes braces in a path for its own."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextlib.contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    """This process's variables, and so its children's, are ``env`` for the length of the block."""
    before = dict(os.environ)
    os.environ.update(env)
    for name in ("MPLBACKEND", "JPY_SESSION_NAME"):  # the kernel chooses its own backend; no session is live
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _one_line(problem: Exception, timeout_s: float) -> str:
    """What a learner needs to know of an exception of papermill or nbclient."""
    name = type(problem).__name__
    if name == "PapermillExecutionError":
        text = f"{problem.ename}: {problem.evalue}".rstrip(": ")
    elif name == "CellTimeoutError":
        text = f"the cell took longer than {timeout_s:g} s; give it more with --timeout"
    elif name == "DeadKernelError":
        text = "the kernel died; was it killed for want of memory? Try a smaller preset"
    else:
        text = f"{name}: {problem}"
    line = next((line.strip() for line in text.splitlines() if line.strip()), name)
    found = advice.of_words(problem.ename, str(problem.evalue)) if name == "PapermillExecutionError" else None
    return line[:_LONGEST_LINE] + (f" → {found.do}" if found else "")


def _finish(output: Path, index: int | None, error: str) -> None:
    """Sign the executed notebook, with the error in its cell, without papermill's own cells and without host paths."""
    if not output.is_file():
        return
    with quick_imports():
        import nbformat
        from nbformat.sign import NotebookNotary
    notebook = nbformat.read(output, 4)
    for key in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(key, None)
    notebook.cells = [cell for cell in notebook.cells if _ERROR_TAG not in cell.metadata.get("tags", ())]
    told = any(item.output_type == "error" for cell in notebook.cells for item in cell.get("outputs", ()))
    if error and not told and index is not None and index < len(notebook.cells):
        line = nbformat.v4.new_output("error", ename="NotFinished", evalue=error, traceback=[error])
        notebook.cells[index].outputs.append(line)
    nbformat.write(notebook, output)
    notary = NotebookNotary()
    try:
        notary.sign(nbformat.read(output, 4))
    finally:
        notary.store.close()


class _Memory(threading.Thread):
    """Watches the memory of the kernel and all its descendants while the block runs.

    The sum of resident sizes counts shared pages more than once, so it is an upper bound; the kernel's own peak comes
    from the system and misses nothing.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._earlier: list[Any] = []

    def __enter__(self) -> "_Memory":
        import psutil

        self._earlier = psutil.Process().children()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Sample until stopped."""
        while not self._ended.wait(_SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self._now_bytes())

    def _now_bytes(self) -> int:
        import psutil

        roots = [child for child in psutil.Process().children() if child not in self._earlier]
        total, highest = 0, 0
        for root in roots:
            highest = max(highest, _peak_of(root.pid))
            with contextlib.suppress(psutil.Error):
                total += sum(_resident(process) for process in [root, *root.children(recursive=True)])
        return max(total, highest)


def _resident(process: Any) -> int:
    import psutil

    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _peak_of(pid: int) -> int:
    """The highest resident size a process ever had; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return 0
