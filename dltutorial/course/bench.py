"""``dltutorial bench NAME``: measure, print a table, keep records.

In: the name of a benchmark, sizes, how often. Out: a table of medians with their spread, predictions beside them; one
record for each row, and the same figures as a JSON file if asked for.
"""

import dataclasses
import datetime
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from dltutorial import config, machine, node, paths
from dltutorial.course.bench_rows import Options, Row, table
from dltutorial.errors import CourseError
from dltutorial.record import records

# Name → what it measures. The function of that name lives in ``bench_<name>.py`` and is loaded when it is called.
BENCHES: Mapping[str, str] = MappingProxyType({
    "overhead": "what imports, kernels and papermill cost",
    "loaders": "the ladder of loaders, the layouts on disk, overlap with a step",
    "precision": "a matrix product and a whole update in every precision this machine has",
    "graphs": "the price of starting operations, and steps recorded and replayed",
    "ddp": "data-parallel steps on two ranks or more: naive, bucketed, overlapped, torch's",
    "collectives": "sizes × ranks × algorithms × backends: times, algorithm and bus bandwidth",
    "ladder": "from the naive baseline to the best, each knob alone and on top of the others",
    "convergence": "updates to a target accuracy against batch size, learning rates tuned, SGD and Adam",
    "scaling": "real and emulated steps on 1 to 8 ranks, beside the simulator; published runs beside it too",
    "solution": "the time to a target quality by loader, batch, precision and ranks, predicted beside measured",
})  # fmt: skip


def run(name: str, repeats: int = 5, json_file: Path | None = None, preset: str = "auto") -> int:
    """Run the benchmark of that name; returns the exit status.

    Raises:
        CourseError: there is none of that name, nothing to repeat, a file that cannot be written, or a login node.
    """
    if name not in BENCHES:
        raise CourseError(f"no benchmark {name!r}; choose one of: {', '.join(BENCHES)}")
    if repeats < 1:
        raise CourseError(f"--repeats {repeats}: must be at least 1; the default is 5")
    node.refuse_on_login("a benchmark", f"run it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial bench {name}'")
    options = Options(config.preset(preset), repeats)
    if json_file is not None:
        _try_place(json_file)
    rows = list(_benchmark(name)(options))
    versions = ", ".join(f"{package} {version}" for package, version in machine.versions().items() if version)
    print(f"{name} on {machine.label()}, preset {options.preset.name}; {versions}\n{table(rows)}")
    _keep(name, options, rows, json_file)
    return 0


def _try_place(file: Path) -> None:
    """A place that cannot be written is told before minutes of measuring; what stands there stays until they are over.

    Raises:
        CourseError: it cannot be written.
    """
    if file.is_dir():
        raise CourseError(f"cannot write {file}: it is a folder; give the name of a file")
    trial = file.with_name(f"{file.name}.trial")
    paths.write_text(trial, "")
    trial.unlink()


def _benchmark(name: str) -> Callable[[Options], Iterator[Row]]:
    return getattr(importlib.import_module(f"dltutorial.course.bench_{name}"), name)


def _keep(name: str, options: Options, rows: list[Row], json_file: Path | None) -> None:
    """One record for each row; the same figures as one JSON file, if asked for."""
    writer = records.Writer("bench", options.preset.name)
    found = [dataclasses.asdict(dataclasses.replace(row, more=dict(row.more))) | {"median": row.median} for row in rows]
    for row in found:
        more = {key: value for key, value in row.items() if key not in ("what", "median", "unit")}
        writer.write(row["what"], row["median"], row["unit"], bench=name, **more)
    if json_file is not None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        command = f"dltutorial bench {name} --preset {options.preset.name} --repeats {options.repeats}"
        about = {"bench": name, "command": command, "time": now, "preset": options.preset.name}
        about |= {"machine": machine.label(), "versions": machine.versions()}
        paths.write_text(json_file, json.dumps(about | {"rows": found}, indent=1) + "\n")
