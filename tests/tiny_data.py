"""A data set that is small enough for tests: waves that travel east, in the layout of NERSC's public ERA5 files.

Each year is an HDF5 file with the array ``fields`` of shape (time, channel, lat, lon) in float32. Statistics are in the
folder ``stats/``.
"""

from pathlib import Path

import h5py
import numpy as np

YEARS = {"train": (1979, 1980), "valid": (2016,), "test": (2017,)}
SNAPSHOTS, CHANNELS, LAT, LON = 10, 3, 16, 24


def waves(seed: int) -> np.ndarray:
    """One year of smooth waves, shape (time, channel, lat, lon); each channel has its own mean and scale."""
    rng = np.random.default_rng(seed)
    time_T111 = np.arange(SNAPSHOTS)[:, None, None, None]
    lat_H1 = np.linspace(0, np.pi, LAT)[:, None]
    lon_W = np.linspace(0, 2 * np.pi, LON, endpoint=False)
    fields = np.zeros((SNAPSHOTS, CHANNELS, LAT, LON))
    for channel, (mean, scale) in enumerate([(280.0, 10.0), (0.0, 5.0), (-3.0, 0.1)]):
        for number in (1, 2, 3):
            phase = rng.uniform(0, 2 * np.pi)
            wave = np.sin(number * lon_W + phase - 0.4 * time_T111[:, 0]) * np.sin(number * lat_H1 + channel)
            fields[:, channel] += scale * wave
        fields[:, channel] += mean
    return fields.astype(np.float32)


def write_year(file: Path, fields: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as year:
        year["fields"] = fields


def write_tiny_data(folder: Path) -> Path:
    """Write all splits and their statistics into a folder, and return the folder."""
    train = []
    for split, years in YEARS.items():
        for year in years:
            fields = waves(seed=year)
            write_year(folder / split / f"{year}.h5", fields)
            train += [fields] if split == "train" else []
    all_TCHW = np.concatenate(train).astype(np.float64)
    (folder / "stats").mkdir()
    for name, values in {
        "global_means": all_TCHW.mean((0, 2, 3), keepdims=True),
        "global_stds": all_TCHW.std((0, 2, 3), keepdims=True),
        "time_means": all_TCHW.mean(0, keepdims=True),
    }.items():
        np.save(folder / "stats" / f"{name}.npy", values.astype(np.float32))
    return folder
