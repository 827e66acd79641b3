"""The simulated weather: the same bytes from any number of processes, made once, never over other data."""

import dataclasses
import subprocess
import sys

import h5py
import numpy as np
import pytest

from dltutorial import machine
from dltutorial.config import PRESETS, preset
from dltutorial.data import simulate, store, weather
from dltutorial.data.weather import Plan
from dltutorial.errors import DataError

TINY = dataclasses.replace(preset("smoke"), n_lat=16, n_lon=32, years=(6, 1, 1), snapshots=4)
SCRIPT = """
import dataclasses, sys
from pathlib import Path
from dltutorial.config import preset
from dltutorial.data import weather
tiny = dataclasses.replace(preset("smoke"), n_lat=16, n_lon=32, years=(6, 1, 1), snapshots=4)
weather.ensure(tiny, Path(sys.argv[1]), processes=int(sys.argv[2]), progress=False)
"""


def contents(folder):
    """Every file that a reader may see, and its bytes."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data set made by one process, in one go."""
    return weather.ensure(TINY, tmp_path_factory.mktemp("made"), processes=1, device="cpu", progress=False)


@pytest.fixture
def in_process(monkeypatch):
    """Years are simulated here, not in other processes; returns the list of years that were."""
    simulated = []

    def run(plan, files, processes, tick):
        simulated.extend(files)
        simulate.make_years(plan, files, "cpu", tick)

    monkeypatch.setattr(weather, "run_processes", run)
    return simulated


def test_data_set_has_the_layout_of_the_era5_tutorial_data(made):
    train = store.open_split(made, "train")
    assert [file.name for file in train.files] == [f"sim_000{i}.h5" for i in range(1, 7)]
    assert [file.name for file in store.open_split(made, "test").files] == ["sim_0008.h5"]
    assert train.shape == (5, 16, 32) and train.snapshots == (4,) * 6
    assert train.channel_names == ("u", "v", "vorticity", "streamfunction", "tracer")
    assert train.channel_units == ("m/s", "m/s", "1/s", "m^2/s", "1")
    assert (train.geometry, train.snapshot_s) == ("beta-plane", 12 * 3600)
    assert "train 24, valid 4, test 4 samples of 5 × 16 × 32" in store.validate(made)


def test_every_year_is_another(made):
    firsts = [h5py.File(file)["fields"][0] for split in store.SPLITS for file in store.year_files(made, split)]
    for i, x_CHW in enumerate(firsts):
        for y_CHW in firsts[:i]:
            assert np.abs(x_CHW - y_CHW)[0].max() > 1  # m/s


@pytest.mark.ci
def test_two_processes_from_standard_input_make_the_same_bytes(made, tmp_path):
    subprocess.run([sys.executable, "-", tmp_path / "two", "2"], input=SCRIPT, text=True, check=True)
    assert contents(tmp_path / "two") == contents(made)


def test_whole_data_set_is_reused(made, in_process):
    before = {file: file.stat().st_mtime_ns for file in made.rglob("*")}
    assert weather.ensure(TINY, made, progress=False) == made
    assert {file: file.stat().st_mtime_ns for file in made.rglob("*")} == before
    assert in_process == []


def test_data_of_another_plan_are_not_overwritten(made):
    before = contents(made)
    with pytest.raises(DataError, match="of another plan or origin, which is not overwritten"):
        weather.ensure(TINY, made, seed=1, progress=False)
    assert contents(made) == before


def test_too_little_space_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "disk_free_bytes", lambda folder: 1000)
    with pytest.raises(DataError, match=r"0\.0 MB free, but .* MB are needed"):
        weather.ensure(TINY, tmp_path, progress=False)
    assert not contents(tmp_path)


def test_an_interrupted_run_is_completed_by_the_next_one(tmp_path, made, in_process, monkeypatch):
    def interrupted(plan, files, processes, tick):
        def stop():
            if list(tmp_path.glob("train/*.h5")):
                raise KeyboardInterrupt

        simulate.make_years(plan, files, "cpu", stop)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(weather, "run_processes", interrupted)
        weather.ensure(TINY, tmp_path, device="cpu", progress=False)
    assert list(contents(tmp_path)) == ["train/sim_0001.h5"]
    weather.ensure(TINY, tmp_path, device="cpu", progress=False)
    assert in_process == list(range(2, 9))
    assert contents(tmp_path) == contents(made)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_plan_of_its_own(name):
    plan = Plan.of(PRESETS[name])
    assert plan.shape == (PRESETS[name].n_channels, PRESETS[name].n_lat, PRESETS[name].n_lon)
    assert plan.digest not in {Plan.of(p).digest for p in PRESETS.values() if p.name != name}
    assert plan.digest != Plan.of(PRESETS[name], seed=1).digest
    assert (plan.flow.step - 2 / plan.flow.n_lat) <= 0


def test_years_of_a_group_are_the_same_after_a_gap(tmp_path, monkeypatch):
    """On a GPU years are simulated side by side; here such a group runs on the CPU."""
    monkeypatch.setattr(simulate, "_groups", lambda plan, device: [(1, 2), (3, 4)])
    plan = Plan.of(dataclasses.replace(TINY, years=(2, 1, 1)))
    files = {year: tmp_path / f"sim_{year:04d}.h5" for year in range(1, 5)}
    simulate.make_years(plan, files, "cpu", lambda: None)
    before = contents(tmp_path)
    files[3].unlink()
    ticks = []
    simulate.make_years(plan, {3: files[3]}, "cpu", lambda: ticks.append(1))
    assert contents(tmp_path) == before
    assert len(ticks) == plan.snapshots


@pytest.mark.gpu
def test_gpu_makes_the_same_years_again_after_a_gap(tmp_path):
    small = dataclasses.replace(TINY, years=(2, 1, 1))
    weather.ensure(small, tmp_path, device="cuda", progress=False)
    before = contents(tmp_path)
    (tmp_path / "valid" / "sim_0003.h5").unlink()
    weather.ensure(small, tmp_path, device="cuda", progress=False)
    assert contents(tmp_path) == before
