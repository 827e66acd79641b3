"""What a simulated data set is made of: all that decides its bytes, in one frozen ``Plan``. Loads no torch."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from dltutorial.config import Preset
from dltutorial.data import store
from dltutorial.data.flow import Flow, atmosphere
from dltutorial.errors import RecipeError

INTERVAL = 0.75  # between snapshots; 12 hours


@dataclass(frozen=True)
class Plan:
    """All that decides the bytes of a data set.

    Attributes:
        flow: grid, physics, time step.
        years: (train, valid, test) files; they are numbered through, from 1.
        snapshots: in a year.
        seed: of the whole data set; a year's is (seed, number).
        spin_up, settle: time units before the first snapshot, on the coarse and on the own grid.
        version: of the code; raised when it gives other bytes for the same plan.
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
        """The data set of a preset. The time step is the longest up to the documented one that meets every snapshot.

        Raises:
            RecipeError: a seed below 0.
        """
        if seed < 0:
            raise RecipeError(f"seed {seed} cannot be; take 0 or more")
        flow = atmosphere(preset.n_lat, preset.n_lon, preset.n_layers)
        flow = dataclasses.replace(flow, dt=INTERVAL / math.ceil(INTERVAL / flow.step))
        spin_up, settle = (25.0, 6.0) if preset.n_layers == 1 else (40.0, 9.0)  # several layers overshoot at first
        return cls(flow, tuple(preset.years), preset.snapshots, seed, spin_up, settle)

    @classmethod
    def from_dict(cls, d: dict) -> "Plan":
        """Back from ``dataclasses.asdict`` by way of JSON."""
        lists = {k: tuple(v) for k, v in d["flow"].items() if isinstance(v, list)}
        return cls(**{**d, "flow": Flow(**{**d["flow"], **lists}), "years": tuple(d["years"])})

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
