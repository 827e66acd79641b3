"""Measured peaks: plausible and cached; and the roofline that is made of them."""

import math

import pytest

from dltutorial.profile import peaks
from dltutorial.profile.probes import Figure


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("DLTUTORIAL_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setattr(peaks, "_SECONDS", 0.2)
        yield


@pytest.fixture(scope="module")
def measured(cache):
    return peaks.measure()


def made_up(flops_per_s=100.0, bytes_per_s=10.0):
    compute, copy = Figure(flops_per_s, 90.0, "FLOP/s", ""), Figure(bytes_per_s, 9.0, "bytes/s", "")
    return peaks.Peaks("a machine", "cpu", "", {"fp32": compute, "bf16": None}, copy, {})


def test_every_figure_is_finite_and_says_how_it_was_measured(measured):
    for name, figure in measured.figures().items():
        if figure is not None:
            assert 0 < figure.median <= figure.best < math.inf, name
            assert 0 <= figure.spread < 1
            assert figure.unit in ("FLOP/s", "bytes/s")
            assert figure.how


def test_the_second_call_reads_the_first_ones_file(measured):
    file = peaks.cache_file()
    before = file.stat().st_mtime_ns
    assert peaks.measure() == peaks.load() == measured
    assert list(file.parent.iterdir()) == [file]
    assert file.stat().st_mtime_ns == before


def test_the_roofline_is_the_lower_of_two_roofs():
    here = made_up(flops_per_s=100.0, bytes_per_s=10.0)
    assert here.ridge("fp32") == 10
    assert here.predict_s(flop=1000, n_bytes=10, dtype="fp32") == 10
    assert here.predict_s(flop=10, n_bytes=1000, dtype="fp32") == 100
