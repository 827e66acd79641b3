import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import psutil
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


@pytest.mark.ci
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_killed_run_leaves_no_process_and_goes_on_to_the_same_bytes(made, tmp_path, in_process, kill):
    out = tmp_path / "killed"
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, out, "1"], stderr=subprocess.DEVNULL)
    until(lambda: list(out.glob("train/*.h5")) and list(out.glob("train/.*.partial")))
    family = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(kill)
    assert parent.wait(90) != 0
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family))
    there = contents(out)
    assert 0 < len(there) < 8 and not list(out.rglob("*.partial"))

    weather.ensure(TINY, out, device="cpu", progress=False)
    assert len(in_process) == 8 - len(there)
    assert contents(out) == contents(made)


@pytest.fixture
def stopped(tmp_path):
    """(parent, its children): two of them simulate a year for long, and somebody has stopped them."""
    script = SCRIPT.replace("snapshots=4", "snapshots=9999")
    words = [sys.executable, "-c", script, tmp_path / "out", "2"]
    with open(tmp_path / "said", "w") as said:
        parent = subprocess.Popen(words, stderr=said, start_new_session=True)
    until(lambda: len(list(tmp_path.glob("out/train/.*.partial"))) == 2)
    children = psutil.Process(parent.pid).children()
    for child in children:
        child.suspend()
    threads = [file for child in children for file in Path(f"/proc/{child.pid}/task").glob("*/status")]
    until(lambda: all("State:\tT" in file.read_text() for file in threads))  # on a busy machine they take a while
    yield parent, children
    parent.kill()
    parent.wait()
    for child in filter(psutil.Process.is_running, children):
        child.kill()


def ended(processes):
    return all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.ci
def test_a_process_that_is_stopped_is_named_and_an_interrupt_ends_it_as_any_other(stopped, tmp_path):
    parent, children = stopped
    pids = [child.pid for child in children]
    lines = {f"a simulating process is stopped; to go on: kill -CONT {n}" for n in pids}
    until(lambda: lines <= {*(tmp_path / "said").read_text().splitlines()})
    parent.send_signal(signal.SIGINT)
    parent.wait(90)
    assert ended(children)


@pytest.mark.ci
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_stopped_ends_with_its_parent(stopped, how):
    parent, children = stopped
    parent.send_signal(how)
    parent.wait(90)
    until(lambda: ended(children))


def until(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


@pytest.mark.ci
def test_half_a_file_is_cleared_and_not_read(made, tmp_path, in_process):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / ".sim_0001.h5.0123abcd.partial").write_bytes(b"half")
    weather.ensure(TINY, tmp_path, device="cpu", progress=False)
    assert contents(tmp_path) == contents(made)


def test_two_callers_at_once_make_the_data_once(tmp_path, in_process):
    small = dataclasses.replace(TINY, years=(1, 1, 1))
    callers = [
        threading.Thread(target=weather.ensure, args=(small, tmp_path), kwargs={"device": "cpu", "progress": False})
        for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert in_process == [1, 2, 3]
    assert "train 4, valid 4, test 4" in store.validate(tmp_path)


def test_whole_data_set_is_reused(made, in_process):
    before = {file: file.stat().st_mtime_ns for file in made.rglob("*")}
    assert weather.ensure(TINY, made, progress=False) == made
    assert {file: file.stat().st_mtime_ns for file in made.rglob("*")} == before
    assert in_process == []


@pytest.mark.parametrize("missing", ["valid/sim_0002.h5", "stats/time_means.npy", "dataset.json"])
def test_what_is_missing_is_made_and_ones_own_statistics_and_names_stay(missing, tmp_path, in_process):
    small = dataclasses.replace(TINY, years=(1, 1, 1))
    weather.ensure(small, tmp_path, device="cpu", progress=False)
    before = contents(tmp_path)
    for file in (tmp_path / "stats").iterdir():
        np.save(file, np.load(file) * 2)
    about = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(about | {"units": ["knots"] * 5, "seen": "by me"}))
    own = contents(tmp_path)
    (tmp_path / missing).unlink()
    weather.ensure(small, tmp_path, device="cpu", progress=False)
    assert contents(tmp_path) == own | {missing: before[missing]}
    assert in_process == [1, 2, 3, *([2] if missing.startswith("valid") else [])]


@pytest.mark.parametrize("name", ["train/mine_0001.npy", "valid/1990.zarr", "train/x.h5"])
def test_no_year_is_simulated_beside_somebodys_own_in_whatever_layout(tmp_path, name):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError, match=f"{name} is not of this data set and is not overwritten"):
        weather.ensure(PRESETS["smoke"], tmp_path, progress=False)
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.name[0] != "."] == [
        name.split("/")[0], name
    ]  # fmt: skip


def test_data_of_another_plan_are_not_overwritten(made):
    before = contents(made)
    with pytest.raises(DataError, match="of another plan or origin, which is not overwritten"):
        weather.ensure(TINY, made, seed=1, progress=False)
    assert contents(made) == before


@pytest.mark.parametrize("name", ["train/1979.h5", "train/sim_0001.h5"])
def test_foreign_years_are_not_overwritten(tmp_path, name):
    (tmp_path / "train").mkdir()
    with h5py.File(tmp_path / name, "w") as h5:
        h5["fields"] = np.ones((4, 5, 16, 32), np.float32)
    before = contents(tmp_path)
    with pytest.raises(DataError, match=f"{name} is not of this data set and is not overwritten"):
        weather.ensure(TINY, tmp_path, progress=False)
    assert contents(tmp_path) == before


def test_foreign_statistics_are_not_overwritten(tmp_path):
    (tmp_path / "stats").mkdir()
    np.save(tmp_path / "stats" / "time_means.npy", np.ones(3))
    with pytest.raises(DataError, match=r"time_means\.npy is not of this data set"):
        weather.ensure(TINY, tmp_path, progress=False)


def test_truncated_year_is_named(tmp_path, in_process):
    small = dataclasses.replace(TINY, years=(1, 1, 1))
    weather.ensure(small, tmp_path, device="cpu", progress=False)
    file = tmp_path / "valid" / "sim_0002.h5"
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"sim_0002\.h5 is truncated; delete it"):
        weather.ensure(small, tmp_path, progress=False)
    file.unlink()
    weather.ensure(small, tmp_path, device="cpu", progress=False)
    assert in_process == [1, 2, 3, 2]


def test_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "disk_free_bytes", lambda folder: 1000)
    with pytest.raises(DataError, match=r"0\.0 MB free, but .* MB are needed"):
        weather.ensure(TINY, tmp_path, progress=False)
    assert not contents(tmp_path)


def test_failure_in_a_process_is_told_in_one_line(monkeypatch):
    plan, start = Plan.of(TINY), weather._start
    with pytest.raises(DataError, match=r"^cannot write /dev/null/sim_0001\.h5"):
        weather.run_processes(plan, {1: Path("/dev/null/sim_0001.h5")}, 1, lambda: None)

    def killed():
        child = start()
        child.kill()
        return child

    monkeypatch.setattr(weather, "_start", killed)
    with pytest.raises(DataError, match="a simulating process died: exit status -9; run again"):
        weather.run_processes(plan, {1: Path("sim_0001.h5")}, 1, lambda: None)


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
