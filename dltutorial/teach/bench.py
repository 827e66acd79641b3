"""``dltutorial bench NAME``: measure, print a table, keep records.

``overhead``: what starting things costs beside the work itself: imports, the command line, kernels, papermill, and the
simulation of the smoke data. In: how often. Out: medians with their spread, each beside its budget in seconds.
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import json
import multiprocessing as mp
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from dltutorial import config, machine, paths
from dltutorial.errors import CourseError
from dltutorial.observe import records
from dltutorial.observe.table import Table
from dltutorial.observe.timing import Timing, duration
from dltutorial.teach import execute, kernel, preload

# Seconds, on 2 CPU cores; None where there is none.
BUDGETS_S: Mapping[str, float | None] = MappingProxyType({
    "import dltutorial": 0.1,
    "dltutorial --help": 0.5,
    "bare kernel that imports torch": None,
    "notebook, plain kernel": 3.0,
    "notebook, preloaded kernel": 1.0,
    "preloading, once": None,
    "simulating the smoke data, once": 30.0,
})  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table: what was timed, how long it took, how long it may take."""

    what: str
    timing: Timing
    budget_s: float | None

    @property
    def verdict(self) -> str:
        """Whether the median keeps to the budget."""
        if self.budget_s is None:
            return "–"
        return "within" if self.timing.median_s <= self.budget_s else "over"


def run(name: str, repeats: int = 5, json_file: Path | None = None) -> int:
    """Run the benchmark of that name; returns the exit status.

    Raises:
        CourseError: there is none of that name, nothing to repeat, or a file that cannot be written.
    """
    if name not in BENCHES:
        raise CourseError(f"no benchmark {name!r}; choose one of: {', '.join(BENCHES)}")
    if repeats < 1:
        raise CourseError(f"--repeats {repeats}: must be at least 1; the default is 5")
    if json_file is not None:
        paths.write_text(json_file, "{}\n")  # a place that cannot be written is told before minutes of measuring
    rows = list(BENCHES[name](repeats))
    print(_table(name, rows))
    _keep(name, rows, json_file)
    return 0


def overhead(repeats: int) -> Iterator[Row]:
    """Time what the course costs before any of its own work; variants take turns."""
    from tqdm.auto import tqdm

    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        variants: dict[str, Callable[[], float]] = {
            "import dltutorial": _import_s,
            "dltutorial --help": lambda: _python_s("-m", "dltutorial", "--help"),
            "bare kernel that imports torch": _bare_kernel_s,
            "notebook, plain kernel": lambda: _notebook_s(folder, "python3", {}),
        }
        once: dict[str, float] = {}
        if kernel.available():
            began_s = time.perf_counter()
            env = stack.enter_context(kernel.preloaded())
            once["preloading, once"] = time.perf_counter() - began_s
            variants["notebook, preloaded kernel"] = lambda: _notebook_s(folder, preload.KERNEL_NAME, env)
        samples: dict[str, list[float]] = {what: [] for what in variants}
        with tqdm(total=(repeats + 1) * len(variants), desc="overhead", unit="start") as bar:
            for repeat in range(repeats + 1):
                for what, measure in variants.items():
                    seconds = measure()
                    if repeat:  # the first round warms up: files come from the disk
                        samples[what].append(seconds)
                    bar.update()
        once["simulating the smoke data, once"] = _simulation_s(folder / "data")
    for what, values in (samples | {what: [seconds] for what, seconds in once.items()}).items():
        yield Row(what, Timing(tuple(values)), BUDGETS_S[what])


BENCHES: Mapping[str, Callable[[int], Iterator[Row]]] = MappingProxyType({"overhead": overhead})


def _import_s(tries: int = 5) -> float:
    """Seconds by which ``import dltutorial`` makes an interpreter slower; of several tries the quickest of each."""
    bare_s, with_import_s = (min(_python_s("-c", code) for _ in range(tries)) for code in ("pass", "import dltutorial"))
    return with_import_s - bare_s


def _python_s(*words: str) -> float:
    """Seconds of a fresh interpreter."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began_s


def _bare_kernel_s() -> float:
    """Seconds to start an ordinary kernel, import torch in it, and end it: the floor without papermill."""
    from jupyter_client.manager import start_new_kernel

    began_s = time.perf_counter()
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        reply = client.execute_interactive("import torch", store_history=False, output_hook=lambda message: None)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if reply["content"]["status"] != "ok":
        raise CourseError("torch cannot be imported in a kernel; see dltutorial doctor")
    return time.perf_counter() - began_s


def _notebook_s(folder: Path, kernel_name: str, env: Mapping[str, str]) -> float:
    """Seconds ``dltutorial run`` takes for a notebook that only imports: its process, papermill, kernel, shutdown.

    Raises:
        CourseError: the notebook failed.
    """
    source = folder / "imports.ipynb"
    source.write_text(json.dumps(_notebook("import torch\nimport dltutorial")))
    job = execute.Job(source, folder / "executed.ipynb", folder, kernel_name, env=env)
    began_s = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        result = pool.submit(execute.execute, job).result()
    seconds = time.perf_counter() - began_s
    if result.error:
        raise CourseError(f"a notebook that only imports failed: {result.error}; see dltutorial doctor")
    return seconds


def _notebook(source: str) -> dict:
    cell = {"cell_type": "code", "id": "imports", "metadata": {}, "source": source, "outputs": []}
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell | {"execution_count": None}]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": spec}, "cells": cells}


def _simulation_s(folder: Path) -> float:
    from dltutorial.data import weather

    began_s = time.perf_counter()
    weather.ensure(config.preset("smoke"), folder)
    return time.perf_counter() - began_s


def _table(name: str, rows: list[Row]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in machine.versions().items() if version)
    lines = [
        (
            row.what,
            duration(row.timing.median_s),
            f"{duration(min(row.timing.samples_s))} to {duration(max(row.timing.samples_s))}",
            len(row.timing.samples_s),
            "–" if row.budget_s is None else duration(row.budget_s),
            row.verdict,
        )
        for row in rows
    ]
    table = Table.of(("what", "median", "from … to", "times", "budget", ""), lines)
    return f"{name} on {machine.label()}; {versions}\n{table}"


def _keep(name: str, rows: list[Row], json_file: Path | None) -> None:
    """One record for each row; the same figures as one JSON file, if asked for."""
    writer = records.Writer("bench", "smoke")
    for row in rows:
        writer.write(
            row.what, row.timing.median_s, "s", bench=name, samples_s=row.timing.samples_s, budget_s=row.budget_s
        )
    if json_file is not None:
        found = [dataclasses.asdict(row) | {"median_s": row.timing.median_s, "verdict": row.verdict} for row in rows]
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        about = {"bench": name, "time": now, "machine": machine.label(), "versions": machine.versions()}
        paths.write_text(json_file, json.dumps(about | {"rows": found}, indent=1) + "\n")
