"""Data sets from the simulated atmosphere: made where they are missing, reused where they are whole.

In: a ``Preset`` and a seed. Out: a folder in the layout of ``store``, made by ``years`` in the processes of
``workers``. Loads no torch itself.
"""

import dataclasses
import json
import math
from pathlib import Path

from tqdm.auto import tqdm

from dltutorial import machine, node, paths
from dltutorial.config import Preset
from dltutorial.data import store, workers, writing
from dltutorial.data.flow import TIME_S
from dltutorial.data.plan import INTERVAL, Plan
from dltutorial.errors import CourseError, DataError, RecipeError

_IN_A_JOB = "make it in a job: sbatch -N 1 --wrap '.venv/bin/dltutorial data weather --preset NAME'"


def ensure(
    preset: Preset,
    out: Path | None = None,
    *,
    processes: int | None = None,
    seed: int = 0,
    device: str = "auto",
    progress: bool = True,
) -> Path:
    """Make the data set of a preset unless it is there, and return its folder.

    An interrupted run is taken up where it stopped: whole years are kept. Several callers at once make it once.

    Args:
        preset: sizes.
        out: folder; default ``weather-<preset>-<digest>`` among the data.
        processes: on a CPU; default the cores of this process.
        seed: other numbers give other years.
        device: auto, cpu or cuda.
        progress: show a bar.

    Raises:
        DataError: the folder holds other data, a damaged file, cannot be written, or has too little space.
        RecipeError: a seed, device or number of processes that cannot be.
        CourseError: something is missing, and this is a login node.
    """
    plan = Plan.of(preset, seed)
    if (processes is not None and processes < 1) or device not in ("auto", "cpu", "cuda"):
        raise RecipeError(f"{processes} processes on {device!r}: take at least 1, and device auto, cpu or cuda")
    folder = Path(out) if out is not None else paths.data_dir() / f"weather-{preset.name}-{plan.digest}"
    if not _missing(plan, folder):
        return folder
    node.refuse_on_login("simulating the weather", _IN_A_JOB)
    with writing.locked(folder, progress):
        writing.clear_partial(folder)
        missing = _missing(plan, folder)  # again: another process may have been quicker
        if missing:
            years = {year: file for year, file in missing.items() if year}
            sample_bytes = 4 * math.prod(plan.shape)
            writing.check_space(folder, int(1.02 * len(years) * plan.snapshots * sample_bytes) + 3 * sample_bytes)
            device = machine.device() if device == "auto" else device
            _simulate(plan, years, processes or machine.rank_cores(), device, progress)
            writing.write_stats(folder, progress)
            _describe(plan, folder)
    return folder


def _missing(plan: Plan, folder: Path) -> dict[int, Path]:
    """Years still to be made, and under 0 ``dataset.json`` if that is: it comes last. Empty: the data are whole.

    Raises:
        DataError: something is in the way.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file, not a folder; choose another")
    about, wanted = store.about(folder), plan.files(folder)
    other = "choose another folder, or delete this one"
    if about and about.get("digest") != plan.digest:
        raise DataError(f"{folder} holds a data set of another plan or origin, which is not overwritten; {other}")
    for file in (file for split in store.SPLITS for file in (folder / split).glob("*.h5")):
        if file not in wanted.values() or store.attribute(file, "digest") != plan.digest:
            raise DataError(f"{file} is not of this data set and is not overwritten; {other}")
        if store.file_shape(file) != (plan.snapshots, *plan.shape):
            raise DataError(f"{file} has shape {store.file_shape(file)}; delete it and run again to make it anew")
    missing = {year: file for year, file in wanted.items() if not file.exists()}
    stats = [folder / "stats" / f"{name}.npy" for name in ("global_means", "global_stds", "time_means")]
    there = [file for file in stats if file.exists()]
    if missing and there and not about:
        raise DataError(f"{there[0]} is not of this data set and is not overwritten; {other}")
    if not about or len(there) < len(stats):
        missing[0] = folder / "dataset.json"
    return missing


def _simulate(plan: Plan, years: dict[int, Path], processes: int, device: str, progress: bool) -> None:
    """Make these years, all cores or the whole GPU at work."""
    names = {str(year): str(file) for year, file in years.items()}
    there = (sum(plan.years) - len(years)) * plan.snapshots
    total = sum(plan.years) * plan.snapshots
    with tqdm(desc="simulating", unit="snapshot", initial=there, total=total, disable=not progress) as bar:
        if device == "cpu":
            jobs = [{"plan": dataclasses.asdict(plan), "files": {year: names[year]}} for year in names]
            workers.run(jobs, processes, bar.update)
        elif names:
            from dltutorial.data import years as simulation

            simulation.make_years(plan, names, device, bar.update)


def _describe(plan: Plan, folder: Path) -> None:
    """Write ``dataset.json``, last: where it is, the data set is whole."""
    about = {
        "channels": plan.flow.channel_names,
        "units": plan.flow.channel_units,
        "geometry": "beta-plane",
        "snapshot_s": INTERVAL * TIME_S,
        "digest": plan.digest,
        "plan": dataclasses.asdict(plan),
    }
    try:
        paths.write_text(folder / "dataset.json", json.dumps(about, indent=1) + "\n")
    except (OSError, CourseError) as error:
        raise DataError(f"cannot write {folder / 'dataset.json'}: {error}; make room, then run again") from error
