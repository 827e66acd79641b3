"""Measured peaks: sane, kept, measured again when the file is damaged; and the roofline made of them."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch

from dltutorial.profile import disk, peaks, timing
from dltutorial.profile.probes import Figure


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("DLTUTORIAL_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="module")
def measured(cache):
    return peaks.measure(progress=False, seconds=0.2)


def made_up(flops_per_s=100.0, bytes_per_s=10.0):
    compute, copy = Figure(flops_per_s, 90.0, 3, "FLOP/s", ""), Figure(bytes_per_s, 9.0, 3, "bytes/s", "")
    return peaks.Peaks("a machine", "cpu", 1, "", 0.0, {}, {"fp32": compute, "bf16": None}, copy, {})


def test_every_figure_is_finite_and_says_how_it_was_measured(measured):
    for name, figure in measured.figures().items():
        if figure is not None:
            assert 0 < figure.median <= figure.best < math.inf, name
            assert 0 <= figure.spread < 1
            assert figure.repeats >= 3
            assert figure.unit in ("FLOP/s", "bytes/s")
            assert figure.how


def test_the_figures_are_those_of_a_computer(measured):
    assert 1e9 < measured.peak_flops_per_s("fp32") < 1e16
    assert measured.peak_flops_per_s("fp64") < 2 * measured.peak_flops_per_s("fp32")
    assert 1e8 < measured.memory_bytes_per_s < 1e14
    assert measured.disk["warm_sequential"].best > 1e7


def test_the_second_call_reads_the_first_ones_file(measured):
    file = peaks.cache_file()
    before = file.stat().st_mtime_ns
    assert peaks.measure(progress=False) == peaks.load() == measured
    assert list(file.parent.iterdir()) == [file]
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("time", "waited", "used"),
    [("2020-01-01T00:00:00+00:00", 0.0, True), ("2020-01-01T00:00:00+00:00", 0.9, False), (None, 0.9, True)],
)
def test_peaks_of_a_busy_machine_are_soon_measured_again(measured, time, waited, used):
    file = peaks.cache_file()
    whole = file.read_text()
    copy = Figure(2.0, 2.0, 3, "bytes/s", "made up")
    kept = dataclasses.replace(measured, time=time or measured.time, waited=waited, memory=copy, matmul={})
    file.write_text(json.dumps({"layout": json.loads(whole)["layout"], **dataclasses.asdict(kept)}))
    try:
        assert (peaks.measure(progress=False, seconds=0.05) == kept) == used
    finally:
        file.write_text(whole)


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "{}", "deep", "cut", "layout", "nan", "negative", "time"])
def test_a_damaged_file_is_measured_again(measured, damage):
    file = peaks.cache_file()
    whole = file.read_text()
    content = json.loads(whole)
    if damage == "layout":
        content["layout"] = -1
    elif damage in ("nan", "negative"):
        content["memory"]["best"] = math.nan if damage == "nan" else -1.0
    elif damage == "time":
        content["time"] = "2020-01-01"
    file.write_text(
        {"cut": whole[:200], "deep": "[" * 100_000}.get(
            damage, damage if damage in ("", "{", "[]", "null", "{}") else json.dumps(content)
        )
    )
    try:
        assert peaks.load() is None
        if damage == "cut":
            again = peaks.measure(progress=False, seconds=0.05)
            assert peaks.load() == again
    finally:
        file.write_text(whole)


def test_nothing_is_left_in_the_measured_folder_and_torch_stays_as_it_was(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path / "data"))
    torch.manual_seed(3)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    precision = torch.get_float32_matmul_precision()
    peaks.measure(refresh=True, progress=False, seconds=0.05)
    assert list((tmp_path / "data").iterdir()) == []
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_float32_matmul_precision() == precision


def test_a_folder_that_cannot_be_written_is_not_an_error(tmp_path):
    (tmp_path / "file").touch()
    assert set(disk.read_bytes_per_s(tmp_path / "file" / "inside", 0.05).values()) == {None}


def test_a_cache_that_cannot_be_written_is_not_an_error(cache, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert peaks.measure(progress=False, seconds=0.05).peak_flops_per_s() > 1e9


def test_little_disk_means_a_smaller_file_or_none(tmp_path):
    small = disk.read_bytes_per_s(tmp_path, 0.1, most_bytes=16 << 20)["warm_sequential"]
    assert "16 MiB file" in small.how
    assert set(disk.read_bytes_per_s(tmp_path, 0.1, most_bytes=1 << 20).values()) == {None}


def test_cold_reads_find_nothing_in_the_page_cache(tmp_path):
    with open(tmp_path / "file", "w+b", buffering=0) as file:
        n_bytes = disk._fill(file.fileno(), 16 << 20, 1.0)
        assert disk._cached_part(file.fileno(), n_bytes) == 1.0
        if not disk._drop_cache(file.fileno(), n_bytes, scattered=True):
            pytest.skip("the page cache cannot be dropped in this folder")
        assert disk._cached_part(file.fileno(), n_bytes) < 0.05
        file.seek(0)
        file.read()
        assert disk._cached_part(file.fileno(), n_bytes) == 1.0


@pytest.mark.parametrize("call_s", [1e-5, 0.005])
def test_times_are_those_of_one_call(call_s, monkeypatch):
    now_s, n_calls = 0.0, 0

    def run():
        nonlocal now_s, n_calls
        now_s, n_calls = now_s + call_s, n_calls + 1

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now_s))
    samples_s = timing.times_s(run, "cpu", 0.05)
    assert samples_s == pytest.approx([call_s] * len(samples_s))
    assert len(samples_s) >= 3
    assert n_calls == 2 + len(samples_s) * max(1, round(0.003 / call_s))
    assert now_s == pytest.approx(0.05, abs=0.006)


def test_the_roofline_is_the_lower_of_two_roofs():
    here = made_up(flops_per_s=100.0, bytes_per_s=10.0)
    assert here.ridge("fp32") == 10
    assert here.predict_s(flop=1000, n_bytes=10) == 10
    assert here.predict_s(flop=10, n_bytes=1000) == 100


@pytest.mark.parametrize("dtype", ["fp32", "float32", torch.float32])
def test_a_dtype_goes_by_any_of_its_names(dtype):
    assert made_up().peak_flops_per_s(dtype) == 100


@pytest.mark.gpu
def test_tensor_cores_beat_ordinary_ones_on_a_gpu(measured):
    assert measured.device == "cuda"
    assert measured.peak_flops_per_s("bf16") > 2 * measured.peak_flops_per_s("fp32")
