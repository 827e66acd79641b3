"""The script of the page "Your own data" writes NetCDF and Zarr files of ERA5 in the layout of the course."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from dltutorial.data import check, store

PAGE = Path(__file__).parents[2] / "book" / "training.md"
LATITUDES = np.linspace(-90, 90, 5)  # upside down
LONGITUDES = np.linspace(-180, 135, 8)  # from 180° west
FILL = -32767


def temperature(t):
    """A field that says where each value belongs, (lat, lon)."""
    return 1000 * t + LATITUDES[:, None] + (LONGITUDES % 360) / 1000


def variables():
    """Three snapshots of three variables, the second one packed and without values on land: name → (values, attrs)."""
    sst = np.stack([np.full((5, 8), 10 * t) for t in range(3)]).astype(np.int16)
    sst[:, :2] = FILL
    z = np.stack([np.full((3, 5, 8), level, np.float32) for level in (1000, 500)], 1)
    z += np.random.default_rng(0).standard_normal(z.shape, np.float32)
    return {
        "latitude": (LATITUDES, {}),
        "longitude": (LONGITUDES, {}),
        "pressure_level": (np.array([1000.0, 500.0]), {}),
        "t2m": (np.stack([temperature(t) for t in range(3)]).astype(np.float32), {"_FillValue": np.nan}),
        "sst": (sst, {"_FillValue": FILL, "scale_factor": 0.5, "add_offset": 280.0}),
        "z": (z, {}),
    }


def write_netcdf(path):
    """NetCDF 4 is HDF5, and h5py reads its attributes as arrays of one number."""
    with h5py.File(path, "w") as file:
        for name, (values, attributes) in variables().items():
            file[name] = values
            file[name].attrs.update({key: np.array([value]) for key, value in attributes.items()})


def write_zarr(path):
    group = zarr.open_group(path, mode="w")
    for name, (values, attributes) in variables().items():
        group.create_array(name, data=values)
        group[name].attrs.update({key: value for key, value in attributes.items() if value == value})


@pytest.mark.parametrize(("name", "write"), [("2015.nc", write_netcdf), ("2015.zarr", write_zarr)])
def test_the_script_of_the_page_writes_data_that_the_course_reads(name, write, tmp_path):
    script = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "era5.py").write_text(script, encoding="utf-8")
    write(tmp_path / name)
    for split in ("train", "valid"):
        command = [sys.executable, "era5.py", name, f"data/{split}/2015.h5"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=100)
    report = check.check(tmp_path / "data", write_statistics=True)
    assert not report.problems
    t2m, sst, z = np.stack(list(store.samples(tmp_path / "data" / "train" / "2015.h5")), 1)
    rows, columns = np.argsort(-LATITUDES), np.argsort(LONGITUDES % 360)
    expected = np.stack([temperature(t) for t in range(3)])[:, rows][:, :, columns]
    np.testing.assert_allclose(t2m, expected, rtol=1e-6)
    np.testing.assert_allclose(sst[:, 0, 0], [280, 285, 290])
    np.testing.assert_allclose(sst[1], 285)  # also on land
    assert abs(z.mean() - 500) < 1
