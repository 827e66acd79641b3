"""Data sets from the simulated atmosphere: made where they are missing, reused where they are whole.

In: a ``Preset`` and a seed. Out: a folder in the layout of ``store``. All that decides its bytes is in one frozen
``Plan``. On a CPU each core simulates years of its own, in a process of its own. Loads no torch.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

from tqdm.auto import tqdm

import dltutorial
from dltutorial import machine, node, paths
from dltutorial.config import Preset
from dltutorial.data import formats, store, writing
from dltutorial.data.flow import TIME_S, Flow, atmosphere
from dltutorial.errors import DataError, RecipeError

INTERVAL = 0.75  # between snapshots; 12 hours
_IN_A_JOB = "make it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial data weather --preset NAME'"


@dataclass(frozen=True)
class Plan:
    """All that decides the bytes of a data set."""

    flow: Flow  # grid, physics, time step
    years: tuple[int, int, int]  # (train, valid, test) files; they are numbered through, from 1
    snapshots: int  # in a year
    seed: int = 0  # of the whole data set; a year's is (seed, number)
    spin_up: float = 25.0  # time units before the first snapshot, on the coarse grid …
    settle: float = 6.0  # … and then on its own
    version: int = 1  # of the code; raised when it gives other bytes for the same plan

    @classmethod
    def of(cls, preset: Preset, seed: int = 0) -> "Plan":
        """That of a preset. The time step is the longest documented that meets all snapshots. RecipeError: seed < 0."""
        if seed < 0:
            raise RecipeError(f"seed {seed} cannot be; take 0 or more")
        flow = atmosphere(preset.n_lat, preset.n_lon, preset.n_layers)
        flow = dataclasses.replace(flow, dt=INTERVAL / math.ceil(INTERVAL / flow.step))
        spin_up, settle = (25.0, 6.0) if preset.n_layers == 1 else (40.0, 9.0)  # several layers overshoot at first
        return cls(flow, preset.years, preset.snapshots, seed, spin_up, settle)

    @property
    def digest(self) -> str:
        """Eight characters that differ between plans."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a sample."""
        return 5 * self.flow.n_layers, self.flow.n_lat, self.flow.n_lon

    def files(self, folder: Path) -> dict[int, Path]:
        """Where each year belongs, by its number."""
        splits = [name for name, count in zip(store.SPLITS, self.years, strict=True) for _ in range(count)]
        return {year: folder / split / f"sim_{year:04d}.h5" for year, split in enumerate(splits, 1)}


def ensure(
    preset: Preset, out: Path | None = None,
    *, processes: int | None = None, seed: int = 0, device: str = "auto", progress: bool = True,
) -> Path:  # fmt: skip
    """Make the data set of a preset unless it is there, and return its folder.

    Only what is missing is made: years, statistics and ``dataset.json`` that are there stay as they are, be it after
    an interrupt. Several callers at once make it once. DataError: the folder holds other data, a damaged file, cannot
    be written, or lacks space. RecipeError: a seed, device or processes that cannot be. CourseError: on a login node.

    Args:
        preset: sizes.
        out: folder; default ``weather-<preset>-<digest>`` among the data.
        processes: on a CPU; default the cores of this process.
        seed: other numbers give other years.
        device: auto, cpu or cuda.
        progress: show a bar.
    """
    plan = Plan.of(preset, seed)
    if (processes is not None and processes < 1) or device not in ("auto", "cpu", "cuda"):
        raise RecipeError(f"{processes} processes on {device!r}: take at least 1, and device auto, cpu or cuda")
    folder = Path(out) if out is not None else paths.data_dir() / f"weather-{preset.name}-{plan.digest}"
    if not _is_whole(plan, folder):
        node.refuse_on_login("simulating the weather", _IN_A_JOB)
        with writing.locked(folder, progress):
            writing.clear_partial(folder)
            if not _is_whole(plan, folder):  # again: another process may have been quicker
                _make(plan, folder, processes, machine.device() if device == "auto" else device, progress)
    return folder


def _is_whole(plan: Plan, folder: Path) -> bool:
    """Whether every file is there. DataError: something else is in the way."""
    with formats.blaming(folder):
        if folder.exists() and not folder.is_dir():
            raise DataError(f"{folder} is a file, not a folder; choose another")
    about, wanted = store.about(folder), plan.files(folder)
    other = "choose another folder with --out"
    if about and about.get("digest") != plan.digest:
        raise DataError(f"{folder} holds a data set of another plan or origin, which is not overwritten; {other}")
    for file in (file for split in store.SPLITS for file in (folder / split).glob("[!.]*")):
        if file not in wanted.values():  # in whatever layout
            raise DataError(f"{file} is not of this data set and is not overwritten; {other}")
        shape = store.file_shape(file)
        with formats.blaming(file), formats.open_hdf5(file) as h5:
            digest = h5.attrs.get("digest")
        if digest != plan.digest:
            raise DataError(f"{file} is not of this data set and is not overwritten; {other}")
        if shape != (plan.snapshots, *plan.shape):
            raise DataError(f"{file} has shape {shape}, not {(plan.snapshots, *plan.shape)}; {other}")
    years_are_there = all(file.exists() for file in wanted.values())
    there = [file for name in store.STATISTICS if (file := folder / "stats" / f"{name}.npy").exists()]
    others = {p.name for p in folder.glob("*") if not p.match(".*.partial")} - {*store.SPLITS, "stats", ".lock"}
    if others and not about:
        raise DataError(f"{folder} holds {min(others)}, and no data set; choose another folder")
    if there and not years_are_there and not about:
        raise DataError(f"{there[0]} is not of this data set and is not overwritten; {other}")
    return years_are_there and len(there) == len(store.STATISTICS) and bool(about)


def _make(plan: Plan, folder: Path, processes: int | None, device: str, progress: bool) -> None:
    """Simulate what is missing, all cores or the whole GPU at work; then statistics, and last ``dataset.json``."""
    missing = {year: file for year, file in plan.files(folder).items() if not file.exists()}
    sample_bytes = 4 * math.prod(plan.shape)
    writing.check_space(folder, int(1.02 * len(missing) * plan.snapshots * sample_bytes) + 3 * sample_bytes)
    total = plan.snapshots * len(missing)
    with tqdm(desc="simulating", unit="snapshot", total=total, disable=not progress or not total) as bar:
        if device == "cpu":
            run_processes(plan, missing, processes or machine.rank_cores(), bar.update)
        elif missing:
            from dltutorial.data import simulate

            simulate.make_years(plan, missing, device, bar.update)
    if not all((folder / "stats" / f"{name}.npy").exists() for name in store.STATISTICS):
        writing.write_stats(folder, progress, overwrite=False)  # one's own stay
    about: dict[str, Any] = {"channels": plan.flow.channel_names, "units": plan.flow.channel_units}
    about |= {"geometry": "beta-plane", "snapshot_s": INTERVAL * TIME_S}
    about |= {"digest": plan.digest, "plan": dataclasses.asdict(plan)}
    if not store.about(folder):
        with writing.refusals(folder):
            paths.write_text(folder / "dataset.json", json.dumps(about, indent=1) + "\n")


def run_processes(plan: Plan, files: Mapping[int, Path], processes: int, tick: Callable[[], object]) -> None:
    """Simulate these years, divided among processes; ``tick`` for every snapshot that any of them has stored.

    They are ordinary child processes that run ``python -m dltutorial.data.simulate``. Nothing of the caller is imported
    or forked, so this works from a notebook that has used torch, from a script without a main guard, and from standard
    input. After an error or an interrupt all end at once. Years that are complete stay.

    Raises:
        DataError: A year cannot be made, or a process died.
    """
    years = list(files)
    children = [_start() for _ in range(min(processes, len(years)))]
    with ThreadPoolExecutor(max(1, len(children))) as threads:  # one to listen to each child
        try:
            shares = [{year: files[year] for year in years[n::processes]} for n in range(len(children))]
            jobs = zip(children, shares, strict=True)
            ends = {threads.submit(_follow, child, plan, share, tick) for child, share in jobs}
            for end in as_completed(ends):
                end.result()
        finally:
            for child in children:
                child.terminate()  # politely, so that it removes its partial file
            for child in children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(5)
                child.kill()


def _start() -> subprocess.Popen:
    """A simulating process, in a group of its own, so that Ctrl-C reaches the parent alone."""
    search = os.pathsep.join(filter(None, [str(Path(dltutorial.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": search}
    command = [sys.executable, "-P", "-m", "dltutorial.data.simulate"]
    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=environment, process_group=0)


def _follow(child: subprocess.Popen, plan: Plan, files: dict[int, Path], tick: Callable[[], object]) -> None:
    """Give a process its job; it says "snapshot" again and again until it ends. DataError: its own, or that it died."""
    assert child.stdin is not None and child.stdout is not None
    last = ""
    with contextlib.suppress(OSError):  # it may be gone already
        pickle.dump((plan, files), child.stdin)
        child.stdin.flush()
    for line in child.stdout:
        last = line.decode(errors="replace").strip()
        if last == "snapshot":
            tick()
    if status := child.wait():
        kind, _, text = last.partition(": ")  # of a traceback's last line
        if kind == f"{DataError.__module__}.DataError":
            raise DataError(text)
        why = last if last not in ("", "snapshot") else f"exit status {status}"
        raise DataError(f"a simulating process died: {why}; run again to go on")
