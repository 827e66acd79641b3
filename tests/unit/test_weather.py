"""The simulated weather: the same numbers from any number of processes, built once, and only when complete."""

import dataclasses
import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from dltutorial import machine
from dltutorial.config import PRESETS, preset
from dltutorial.data import check, simulate, store, weather
from dltutorial.data.weather import Plan
from dltutorial.errors import DataError

TINY = dataclasses.replace(preset("smoke"), n_lat=16, n_lon=32, years=(3, 1, 1), snapshots=4)
SCRIPT = """
import dataclasses, sys
from pathlib import Path
from dltutorial.config import preset
from dltutorial.data import weather
tiny = dataclasses.replace(preset("smoke"), n_lat=16, n_lon=32, years=(3, 1, 1), snapshots=4)
weather.ensure(tiny, Path(sys.argv[1]))
"""


def contents(folder):
    """Every file, and its bytes."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module", autouse=True)
def _one_core():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A data set that one process has simulated."""
    folder = tmp_path_factory.mktemp("built") / "weather"
    return weather.ensure(TINY, folder)


def test_the_data_set_has_the_layout_of_the_era5_tutorial_data(built):
    train = store.open_split(built, "train")
    assert [file.name for file in train.files] == ["sim_0001.h5", "sim_0002.h5", "sim_0003.h5"]
    assert [file.name for file in store.open_split(built, "test").files] == ["sim_0005.h5"]
    assert train.shape == (5, 16, 32) and train.snapshots == (4,) * 3
    assert train.channel_names == ("u", "v", "vorticity", "streamfunction", "tracer")
    assert train.channel_units == ("m/s", "m/s", "1/s", "m^2/s", "1")
    assert check.check(built).problems == []


def test_every_year_is_different(built):
    firsts = [h5py.File(file)["fields"][0] for split in store.SPLITS for file in store.year_files(built, split)]
    for i, x_CHW in enumerate(firsts):
        for y_CHW in firsts[:i]:
            assert np.abs(x_CHW - y_CHW)[0].max() > 1  # m/s


def test_two_processes_of_a_script_without_a_main_guard_make_the_same_bytes(built, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, tmp_path / "script.py", tmp_path / "two"], check=True, timeout=300)
    assert contents(tmp_path / "two") == contents(built)


def test_other_data_are_not_overwritten(built):
    before = contents(built)
    with pytest.raises(DataError, match="does not hold this data set; choose another folder"):
        weather.ensure(TINY, built, seed=1)
    assert contents(built) == before


def end_process(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(simulate, "make_group", end_process)
    monkeypatch.setattr(machine, "rank_cores", lambda: 2)
    with pytest.raises(DataError, match="a simulating process was killed; give it more memory, and run again"):
        weather.ensure(TINY, tmp_path / "weather")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_its_own_plan(name):
    plan = Plan.of(PRESETS[name])
    assert plan.shape == (PRESETS[name].n_channels, PRESETS[name].n_lat, PRESETS[name].n_lon)
    assert plan.digest not in {Plan.of(p).digest for p in PRESETS.values() if p.name != name}
    assert plan.digest != Plan.of(PRESETS[name], seed=1).digest
    assert plan.flow.step <= 2 / plan.flow.n_lat


def test_years_side_by_side_are_those_of_one_after_another(tmp_path, monkeypatch):
    """A GPU simulates years side by side; here the CPU does."""
    plan = Plan.of(TINY)
    alone = {number: tmp_path / "alone" / f"{number}.h5" for number in (1, 2, 3)}
    simulate.make_years(plan, alone, "cpu")
    monkeypatch.setattr(simulate, "years_side_by_side", lambda plan, device: 2)
    together = {number: tmp_path / "together" / f"{number}.h5" for number in (1, 2, 3)}
    simulate.make_years(plan, together, "cpu")
    for number in (1, 2, 3):
        x_TCHW = h5py.File(alone[number])["fields"][:]
        y_TCHW = h5py.File(together[number])["fields"][:]
        np.testing.assert_allclose(x_TCHW, y_TCHW, atol=1e-3 * np.abs(x_TCHW).max())
