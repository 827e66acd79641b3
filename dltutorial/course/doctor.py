"""Report what this machine has and what is missing, and what each chapter shows here. This is ``dltutorial doctor``.

The input is this machine and the folder of notebooks. The output is plain text, with times in seconds and memory in
GiB, and an exit status.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dltutorial import config, machine, node, paths
from dltutorial.course import notebooks
from dltutorial.errors import first_line
from dltutorial.machine import UNKNOWN, Accelerator, Machine
from dltutorial.profile import peaks, timing
from dltutorial.step import compiling

_PACKAGES = ("torch", "jupyterlab", "papermill", "h5py", "tensorboard", "wandb")
_COMPILERS = ("gcc", "g++", "clang++", "nvcc")


def report(measure: bool = False) -> tuple[str, int]:
    """Return the whole report and the exit status.

    Args:
        measure: Measure the peaks of the machine first, which takes seconds.

    Returns:
        The text, and 0 if the course can run, or 1 if something is missing that the course needs.

    Raises:
        CourseError: The environment names an unknown preset or kind of node, the variables of a launcher contradict
            each other, or there are no notebooks.
    """
    here = machine.describe()
    preset = config.preset()
    chapters = _chapter_rows(here)
    missing = list(problems())
    can_measure = "torch" not in dict(missing)
    measured = peaks.measure(refresh=True) if measure and can_measure else peaks.load()
    date = f", {measured.time[:10]}" if measured else ""
    parts = [
        _section(f"This machine: {machine.label()}", inventory(here)),
        _section(f"Measured peaks{date}", _peak_rows(measured)),
        _section(f"Chapters, in preset {preset.name} ({preset.machine})", chapters),
    ]
    if missing:
        parts.append(_section("Missing, and the course cannot run without it", missing))
        parts.append("The course cannot run yet: see above.")
        return "\n\n".join(parts), 1
    parts.append("The course can run.")
    return "\n\n".join(parts), 0


def inventory(here: Machine) -> list[tuple[str, str]]:
    """Return pairs (what, here) for everything that this machine has or lacks."""
    device = here.device
    if here.system.startswith("Darwin"):
        device += " (the course does not use Apple's GPU)"
    packages = [(name, machine.package_version(name) or "not installed") for name in _PACKAGES]
    return [
        ("system", here.system),
        ("device", device),
        ("accelerators", "; ".join(_gpu(gpu) for gpu in here.accelerators) or UNKNOWN),
        ("CPU", f"{here.cpu_model or UNKNOWN}, {here.cores} usable cores"),
        ("precision units", _precision_units(here)),
        ("memory", f"{_gib(here.memory_available_bytes)} available of {_gib(here.memory_bytes)}"),
        ("disk", f"{_gib(here.disk_free_bytes)} free for data"),
        ("ranks", f"{here.rank.world_size} ({here.rank.launcher})"),
        ("runs on", node.description()),
        ("Slurm", here.slurm or UNKNOWN),
        ("compiler", _compilers(here)),
        *packages,
    ]


def has(need: str, here: Machine) -> bool:
    """Return whether this machine has what the metadata of a notebook names: cuda, slurm or compiler."""
    if need == "cuda":
        return here.device == "cuda"
    if need == "slurm":
        return here.slurm is not None
    return need == "compiler" and compiling.missing(here.device) is None


def problems() -> Iterator[tuple[str, str]]:
    """Yield pairs (what, why and what to do) for each thing that is missing and that the course needs."""
    try:
        import torch  # noqa: F401  # an installed package may fail to load
    except (ImportError, OSError) as error:
        yield "torch", f"does not load ({first_line(error)}); install it: pip install torch"
    kernel_problem = _kernel_problem()
    if kernel_problem:
        yield "jupyter kernel", kernel_problem
    for name, folder, variable in (
        ("cache folder", paths.cache_dir(), "XDG_CACHE_HOME"),
        ("data folder", paths.data_dir(), "DLTUTORIAL_DATA"),
        ("runs folder", paths.runs_dir(), "DLTUTORIAL_RUNS"),
    ):
        try:
            _write_below(folder.absolute())
        except OSError as error:
            todo = f"set {variable} to a folder that you may write to"
            yield name, f"cannot write to {folder.absolute()} ({error.strerror}); {todo}"


def _kernel_problem() -> str:
    """Say why the kernel of the notebooks cannot start, and what to do. Return an empty string if it can start."""
    try:
        from jupyter_client.manager import KernelManager
    except ImportError:
        return "Jupyter is not installed; install it: pip install jupyterlab ipykernel"
    # This is the program that Jupyter starts. For a specification that says "python", it is Jupyter's own Python.
    program = KernelManager(kernel_name="python3").format_kernel_cmd()[0]
    if shutil.which(program):
        done = subprocess.run([program, "-c", "import ipykernel"], capture_output=True)
        if done.returncode == 0:
            return ""
    return (
        f"kernel python3 would start {program}, which has no ipykernel; run: python -m ipykernel install --sys-prefix"
    )


def _write_below(folder: Path) -> None:
    """Write a temporary file into ``folder``, or into its nearest parent that exists."""
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    with tempfile.TemporaryFile(dir=nearest) as file:
        file.write(b"x")


def _chapter_rows(here: Machine) -> list[tuple[str, ...]]:
    """Return a row per chapter: minutes to read, seconds to run, and what it does not show on this machine."""
    rows: list[tuple[str, ...]] = [("", "title", "to read and do", "to run", "here")]
    for path in notebooks.chapters():
        about = notebooks.about(path)
        title = notebooks.title(notebooks.read(path))
        shows = "shows everything"
        missing = [need for need in about["better_with"] if not has(need, here)]
        if missing:
            shows = f"runs; not shown here: what needs {', '.join(missing)}"
        run_time = f"about {about['smoke_s']} s in smoke"
        rows.append((about["chapter"], title, f"{about['minutes']} min", run_time, shows))
    return rows


def _peak_rows(measured: peaks.Peaks | None) -> list[tuple[str, ...]]:
    """Return a row per peak: name, rate, spread, and how it was measured."""
    if measured is None:
        return [("not measured yet: run dltutorial doctor --measure",)]
    rows: list[tuple[str, ...]] = [("", "best of several", "median", "how it was measured")]
    for name, figure in measured.figures().items():
        if figure is None:
            rows.append((name, UNKNOWN))
        else:
            rate = timing.rate(figure.best, figure.unit)
            rows.append((name, rate, f"{figure.spread:.0%} lower", figure.how))
    if not measured.steady:
        rows.append(("this machine was busy meanwhile: when it is idle, run dltutorial doctor --measure",))
    return rows


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """Return a title and rows in aligned columns. The last column of a row may have any length."""
    widths = [0] * max(len(row) for row in rows)
    for row in rows:
        for column, text in enumerate(row[:-1]):
            widths[column] = max(widths[column], len(text))
    lines = [title]
    for row in rows:
        columns = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        lines.append(f"  {'  '.join(columns)}".rstrip())
    return "\n".join(lines)


def _gpu(gpu: Accelerator) -> str:
    """Describe a GPU in a few words."""
    text = f"{gpu.name}, {_gib(gpu.memory_bytes)}, {gpu.kind}"
    if gpu.compute_capability:
        major, minor = gpu.compute_capability
        text += f" {major}.{minor}"
    if gpu.tensor_core_dtypes:
        text += f", tensor cores for {' '.join(gpu.tensor_core_dtypes)}"
    return text


def _precision_units(here: Machine) -> str:
    """Return the instruction sets of the CPU that matter for precision."""
    if here.cpu_units is None:
        return UNKNOWN
    return " ".join(here.cpu_units) or "none known"


def _compilers(here: Machine) -> str:
    """Return the compilers of this machine, and what ``torch.compile`` lacks."""
    compilers = ", ".join(name for name in _COMPILERS if shutil.which(name)) or "none"
    missing = compiling.missing(here.device)
    return f"{compilers}; torch.compile needs {missing}" if missing else compilers


def _gib(n_bytes: int | None) -> str:
    return UNKNOWN if n_bytes is None else f"{n_bytes / 2**30:.1f} GiB"
