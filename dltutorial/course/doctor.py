"""``dltutorial doctor``: what this machine has, what is missing, what each chapter can show here, how long it takes.

In: this machine, the folder of notebooks, records of earlier runs. Out: a plain-text table and an exit status.
"""

import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dltutorial import config, machine, node, paths
from dltutorial.course import notebooks
from dltutorial.errors import CourseError
from dltutorial.machine import UNKNOWN, Machine
from dltutorial.profile import peaks, timing
from dltutorial.record import records
from dltutorial.step import compiling

FOLDERS = {
    "cache folder": (paths.cache_dir, "XDG_CACHE_HOME"), "data folder": (paths.data_dir, "DLTUTORIAL_DATA"),
    "runs folder": (paths.runs_dir, "DLTUTORIAL_RUNS"),
}  # fmt: skip


def report(folder: Path | None = None, measure: bool = False) -> tuple[str, int]:
    """The whole table, and 0 when the course can run, 1 when something essential is missing.

    Args:
        folder: holds the notebooks; None: where ``dltutorial run`` finds them.
        measure: take the machine's peaks first (seconds).

    Raises:
        CourseError: an unknown preset or kind of node in the environment, or a launcher's variables that contradict
            each other.
    """
    here, preset = machine.describe(), config.preset()
    missing = list(problems())
    try:
        chapters = _chapter_rows(notebooks.chapters(folder), here, preset.name)
    except CourseError as error:
        chapters = [("none found",)]
        missing.append(("chapters", str(error)))
    known = peaks.measure(refresh=True) if measure and "torch" not in dict(missing) else peaks.load()
    parts = [
        _section(f"This machine: {machine.label()}", inventory(here)),
        _section(f"Measured peaks{f', {known.time[:10]}' if known else ''}", list(_peak_rows(known))),
        _section(f"Chapters, in preset {preset.name} ({preset.machine})", chapters),
        *([_section("Missing, and the course cannot run without it", missing)] if missing else []),
        "The course cannot run yet: see above." if missing else "The course can run.",
    ]
    return "\n\n".join(parts), int(bool(missing))


def inventory(here: Machine) -> list[tuple[str, str]]:
    """(what, here) for all that this machine has or lacks."""
    gpus = [
        f"{gpu.name}, {_gib(gpu.memory_bytes)}, {gpu.kind}"
        + (f" {'.'.join(map(str, gpu.compute_capability))}" if gpu.compute_capability else "")
        + (f", tensor cores for {' '.join(gpu.tensor_core_dtypes)}" if gpu.tensor_core_dtypes else "")
        for gpu in here.accelerators
    ]
    compilers, lacking = _found("gcc", "g++", "clang++", "nvcc") or "none", compiling.missing(here.device)
    packages = ("torch", "jupyterlab", "papermill", "h5py", "tensorboard", "wandb")
    return [
        ("system", here.system),
        ("device", here.device + " (the course does not use Apple's GPU)" * here.system.startswith("Darwin")),
        ("accelerators", "; ".join(gpus) or UNKNOWN),
        ("processor", f"{here.cpu_model or UNKNOWN}, {here.cores} usable cores"),
        ("precision units", "none known" if here.cpu_units == () else " ".join(here.cpu_units or ()) or UNKNOWN),
        ("memory", f"{_gib(here.memory_available_bytes)} available of {_gib(here.memory_bytes)}"),
        ("disk", f"{_gib(here.disk_free_bytes)} free for data"),
        ("ranks", f"{here.rank.world_size} ({here.rank.launcher})"), ("runs on", node.told()),
        ("Slurm", here.slurm or UNKNOWN),
        ("browser", _found("chromium", "chromium-browser", "google-chrome", "chrome") or UNKNOWN),
        ("compiler", f"{compilers}; torch.compile needs {lacking}" if lacking else compilers),
        *((name, machine.package_version(name) or "not installed") for name in packages),
    ]  # fmt: skip


def has(need: str, here: Machine) -> bool:
    """Whether this machine has what a notebook's metadata names: cuda, slurm or compiler."""
    compiles = compiling.missing(here.device) is None
    return {"cuda": here.device == "cuda", "slurm": bool(here.slurm), "compiler": compiles}.get(need, False)


def problems() -> Iterator[tuple[str, str]]:
    """(what, why and what to do) for each essential thing that is missing; none when the course can run."""
    try:
        import torch  # noqa: F401  a package can be installed and yet not load
    except (ImportError, OSError) as error:
        yield "torch", f"does not load ({_line(error)}); install it: pip install torch"
    try:
        from jupyter_client.manager import KernelManager

        # what Jupyter starts: a specification that says "python" means the Python that Jupyter runs with
        program = KernelManager(kernel_name="python3").format_kernel_cmd()[0]
        mend = "run: python -m ipykernel install --sys-prefix"
        if not shutil.which(program):
            yield "jupyter kernel", f"kernel python3 would start {program}, which is not there; {mend}"
        elif subprocess.run([program, "-P", "-c", "import ipykernel"], capture_output=True, timeout=120).returncode:
            yield "jupyter kernel", f"kernel python3 would start {program}, which has no ipykernel; {mend}"
    except Exception as error:  # a damaged kernel specification raises whatever its parser raises
        yield "jupyter kernel", f"kernel python3 cannot be found ({_line(error)}); install it: pip install ipykernel"
    for name, (place, variable) in FOLDERS.items():
        folder = place().absolute()
        try:
            there = next(one for one in (folder, *folder.parents) if one.exists())
            with tempfile.TemporaryFile(dir=there) as file:
                file.write(b"x")
        except OSError as error:
            yield name, f"cannot write to {folder} ({error.strerror}); set {variable} to a folder that you may write to"


def _chapter_rows(chapters: Sequence[Path], here: Machine, preset: str) -> list[tuple[str, ...]]:
    """A row a chapter: minutes to read, seconds to run, and what it will and will not show on this machine."""
    before_s = _measured_s(preset)
    rows: list[tuple[str, ...]] = [("", "title", "to read and do", "to run", "here")]
    for path in chapters:
        about, title = notebooks.about(path), notebooks.title(notebooks.read(path))
        number, lacking = about["chapter"], [need for need in about.get("better_with", ()) if not has(need, here)]
        measured = f"{before_s[number]:.0f} s (measured here)" if number in before_s else ""
        takes = measured or f"about {about.get('smoke_s', '–')} s in smoke"
        shows = f"runs; not shown here: what needs {', '.join(lacking)}" if lacking else "shows everything"
        rows.append((number, title or path.stem, f"{about.get('minutes', '–')} min", takes, shows))
    return rows


def _measured_s(preset: str) -> dict[str, float]:
    """Median seconds of earlier runs of each chapter on this machine in this preset, from the records."""
    found: dict[str, list[float]] = {}
    for record in records.read(paths.records_dir()):
        if (record["machine"], record["preset"], record["kind"]) == (machine.label(), preset, "run"):
            found.setdefault(record["chapter"], []).append(record["value"])
    return {chapter: statistics.median(seconds) for chapter, seconds in found.items()}


def _peak_rows(known: peaks.Peaks | None) -> Iterator[tuple[str, ...]]:
    if known is None:
        yield ("not measured yet: run chapter 00, or dltutorial doctor --measure",)
        return
    for name, at in known.figures().items():
        yield (name, timing.rate(at.best, at.unit), f"median {at.spread:.0%} lower", at.how) if at else (name, UNKNOWN)
    if not known.steady:
        yield ("this machine was busy meanwhile: when it is quiet, run dltutorial doctor --measure",)


def _section(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """A title and rows in aligned columns; the last column may be as long as it likes."""
    # Only a column with another to its right needs a width, so that a row of one cell can be a whole sentence.
    widths = [max((len(row[c]) for row in rows if len(row) > c + 1), default=0) for c in range(max(map(len, rows)))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _found(*programs: str) -> str:
    return ", ".join(name for name in programs if shutil.which(name))


def _gib(n_bytes: int | None) -> str:
    return UNKNOWN if n_bytes is None else f"{n_bytes / 2**30:.1f} GiB"


def _line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0]
