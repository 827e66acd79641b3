"""``dltutorial bench overhead``: what starting things costs beside the work itself.

In: how often. Out: seconds of imports, the command line, kernels, papermill and the simulation of the smoke data, each
beside its budget.
"""

import concurrent.futures
import json
import multiprocessing as mp
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from dltutorial import config
from dltutorial.course import execute
from dltutorial.course.bench_rows import Options, Row
from dltutorial.errors import CourseError

# Seconds, on 2 CPU cores; None where there is none.
BUDGETS_S: Mapping[str, float | None] = MappingProxyType({
    "import dltutorial": 0.1,
    "dltutorial --help": 0.5,
    "bare kernel that imports torch": None,
    "notebook": 3.0,
    "simulating the smoke data, once": 30.0,
})  # fmt: skip


def overhead(options: Options) -> Iterator[Row]:
    """Time what the course costs before any of its own work; variants take turns."""
    from tqdm.auto import tqdm

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        variants: dict[str, Callable[[], float]] = {
            "import dltutorial": _import_s,
            "dltutorial --help": lambda: _python_s("-m", "dltutorial", "--help"),
            "bare kernel that imports torch": _bare_kernel_s,
            "notebook": lambda: _notebook_s(folder),
        }
        once: dict[str, float] = {}
        samples: dict[str, list[float]] = {what: [] for what in variants}
        with tqdm(total=(options.repeats + 1) * len(variants), desc="overhead", unit="start") as bar:
            for repeat in range(options.repeats + 1):
                for what, measure in variants.items():
                    seconds = measure()
                    if repeat:  # the first round warms up: files come from the disk
                        samples[what].append(seconds)
                    bar.update()
        once["simulating the smoke data, once"] = _simulation_s(folder / "data")
    for what, values in (samples | {what: [seconds] for what, seconds in once.items()}).items():
        yield Row(what, tuple(values), budget=BUDGETS_S[what])


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


def _notebook_s(folder: Path) -> float:
    """Seconds ``dltutorial run`` takes for a notebook that only imports: its process, papermill, kernel, shutdown.

    Raises:
        CourseError: the notebook failed.
    """
    source = folder / "imports.ipynb"
    source.write_text(json.dumps(_notebook("import torch\nimport dltutorial")))
    job = execute.Job(source, folder / "executed.ipynb", folder)
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
