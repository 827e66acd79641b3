"""Data sets of simulated weather: built if they are missing, reused if they are there.

In: a ``Preset`` and a seed. Out: a folder in the layout of ``store``. Everything that decides the numbers is in one
frozen ``Plan``. ``simulate`` computes the years. This module loads no torch, unless a data set must be built.
"""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from dltutorial import machine, paths
from dltutorial.config import Preset
from dltutorial.data import statistics, store, writing
from dltutorial.data.flow import Flow, atmosphere
from dltutorial.errors import DataError

INTERVAL = 0.75  # time between snapshots, without dimension; 12 hours


@dataclass(frozen=True)
class Plan:
    """Everything that decides the numbers of a data set.

    Attributes:
        flow: grid, physics, time step.
        years: (train, valid, test) files. The years are numbered from 1, through all splits.
        snapshots: in a year.
        seed: of the data set; a year's seed is (seed, number).
        spin_up: time before the first snapshot, on a coarse grid, without dimension.
        settle: time after that on the final grid, before the first snapshot.
        version: of the code. Raise it if the code gives other numbers for the same plan.
    """

    flow: Flow
    years: tuple[int, int, int]
    snapshots: int
    seed: int = 0
    spin_up: float = 25.0
    settle: float = 6.0
    version: int = 1

    @classmethod
    def of(cls, preset: Preset, seed: int = 0) -> "Plan":
        """The plan of a preset. The time step is the longest stable one that divides the time between snapshots."""
        flow = atmosphere(preset.n_lat, preset.n_lon, preset.n_layers)
        steps_per_snapshot = math.ceil(INTERVAL / flow.step)
        flow = dataclasses.replace(flow, dt=INTERVAL / steps_per_snapshot)
        spin_up, settle = 25.0, 6.0
        if preset.n_layers > 1:  # several layers overshoot at first
            spin_up, settle = 40.0, 9.0
        return cls(flow, preset.years, preset.snapshots, seed, spin_up, settle)

    @property
    def digest(self) -> str:
        """Eight characters that differ between plans."""
        plan = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(plan.encode()).hexdigest()[:8]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a sample."""
        return 5 * self.flow.n_layers, self.flow.n_lat, self.flow.n_lon

    def files(self, folder: Path) -> dict[int, Path]:
        """The file of each year, by its number."""
        files: dict[int, Path] = {}
        for split, n_years in zip(store.SPLITS, self.years, strict=True):
            for _ in range(n_years):
                year = len(files) + 1
                files[year] = folder / split / f"sim_{year:04d}.h5"
        return files


def ensure(preset: Preset, out: Path | None = None, seed: int = 0) -> Path:
    """Build the data set of a preset, unless it is there, and return its folder.

    Args:
        preset: sizes.
        out: the folder. The default is ``weather-<preset>-<digest>`` among the data.
        seed: another seed gives other years.

    Raises:
        DataError: The folder holds something else or cannot be written, or a simulation fails.
        CourseError: This is a login node.
    """
    plan = Plan.of(preset, seed)
    folder = out or paths.data_dir() / f"weather-{preset.name}-{plan.digest}"
    if folder.exists():
        if store.about(folder).get("digest") != plan.digest:
            raise DataError(f"{folder} exists and does not hold this data set; choose another folder with --out")
        return folder
    from dltutorial.data import simulate

    with writing.building(folder) as temporary:
        simulate.make_years(plan, plan.files(temporary), machine.device())
        statistics.write(temporary, statistics.compute(temporary))
        paths.write_text(temporary / "dataset.json", json.dumps(_about(plan), indent=1) + "\n")
    return folder


def _about(plan: Plan) -> dict[str, object]:
    """The content of ``dataset.json``."""
    return {
        "channels": plan.flow.channel_names,
        "units": plan.flow.channel_units,
        "digest": plan.digest,
        "plan": dataclasses.asdict(plan),
    }
