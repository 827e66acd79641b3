import dataclasses

import numpy as np
import pytest

from dltutorial.course.explorers.device import layer_counts
from dltutorial.course.explorers.device import roofline as make
from dltutorial.errors import CourseError
from dltutorial.profile.peaks import Peaks
from dltutorial.profile.probes import Figure

MACHINE = Peaks(
    "a machine", "cpu", 1, "2026-01-01T00:00:00+00:00", 0.0, {},
    {"fp32": Figure(1e11, 1e11, 1, "FLOP/s", ""), "bf16": Figure(4e11, 4e11, 1, "FLOP/s", ""), "fp16": None},
    Figure(1e10, 1e10, 1, "bytes/s", ""), {},
)  # fmt: skip


def test_a_layers_counts_are_those_of_products_made_one_by_one():
    x_BN, w_NN = np.ones((5, 48), np.float32), np.ones((48, 48), np.float32)
    y_BN, flop = np.zeros_like(x_BN), 0
    for b, row, column in np.ndindex(5, 48, 48):
        y_BN[b, row] += w_NN[row, column] * x_BN[b, column]
        flop += 2
    assert layer_counts(5, 48, "fp32") == (flop, x_BN.nbytes + w_NN.nbytes + y_BN.nbytes)
    assert layer_counts(5, 48, "bf16")[1] == (x_BN.nbytes + w_NN.nbytes + y_BN.nbytes) / 2


def test_one_sample_waits_for_memory_and_a_batch_for_arithmetic():
    explorer = make(MACHINE, {})
    one = explorer.picture(samples=1, width=1000).text
    # 2e6 FLOP and 4 (1e6 + 2e3) bytes: 0.499 FLOP per byte; 4.008e6 bytes at 1e10 bytes/s take 0.4 ms, 5% of the peak
    assert "1 sample through a layer 1,000 wide in fp32: 0.499 FLOP per byte, with the ridge at 10." in one
    assert "Bound by memory: at most 5% of the peak, at least 401 µs." in one
    many = explorer.picture(samples=100, width=1000).text  # 2e8 FLOP at 1e11 FLOP/s take 2 ms
    assert "Bound by arithmetic: at most 100% of the peak, at least 2 ms, 20 µs a sample" in many


def test_a_narrow_layer_never_reaches_the_ridge():
    explorer = make(MACHINE, {})
    assert all("Bound by memory" in explorer.picture(samples=n, width=32).text for n in (1, 256, 65536))
    assert "Bound by arithmetic" in explorer.picture(samples=65536, width=64).text


def test_formats_are_those_measured_and_points_stay_in_their_own():
    explorer = make(MACHINE, {"<add>": (0.1, 1e9)})
    assert explorer.controls["dtype"].options == ("fp32", "bf16")
    assert "the ridge at 40." in explorer.picture(dtype="bf16").text


def test_a_machine_without_peaks_gets_one_line():
    with pytest.raises(CourseError, match="no matrix product was measured on a machine"):
        make(dataclasses.replace(MACHINE, matmul={"fp32": None}), {})
    with pytest.raises(CourseError, match="no memory bandwidth"):
        make(dataclasses.replace(MACHINE, memory=None), {})
