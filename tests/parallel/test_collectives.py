"""On 2 to 4 real ranks, the collectives give the backend's results and take the predicted rounds and bytes."""

import functools
import subprocess
import sys
from pathlib import Path

import collecting
import pytest
import torch
from tallying import tally

from dltutorial.comm import mpi, stopwatch
from dltutorial.comm.collectives import ALL_REDUCES
from dltutorial.comm.cost import counts
from dltutorial.launch import launch as launch_auto

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
DIVISIBLE = 840  # a multiple of all numbers of ranks
launch = functools.partial(launch_auto, backend="gloo")  # also where there are GPUs


@pytest.mark.parametrize("p", [2, 3])
def test_all_dtypes_and_odd_sizes_equal_the_backends(p):
    assert launch(collecting.all_against_backend, p) == [[]] * p


def test_chunks_of_one_size_equal_torchs_own_gather_and_scatter():
    assert launch(collecting.gathers_like_torch, 3, 5) == [True] * 3


def test_every_rank_holds_the_same_bits():
    first, *others = launch(collecting.bits, 3)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in ALL_REDUCES)


@pytest.mark.parametrize("p", [2, 3])
def test_counted_rounds_messages_and_bytes_are_the_formulas(p):
    traffic_by_rank = launch(collecting.counted, p, DIVISIBLE, 2)
    for name in stopwatch.OURS:
        assert tally(traffic[name] for traffic in traffic_by_rank) == counts(name, p, 4 * DIVISIBLE, 2), name


def test_two_subsets_can_communicate_at_the_same_time():
    assert launch(collecting.two_subsets_at_once, 4) == [(2.0, 2), (4.0, 2), (2.0, 2), (4.0, 2)]


def test_the_stopwatch_times_every_name_and_size_on_the_slowest_rank():
    timings = stopwatch.clock(["backend", "ring", "broadcast"], 2, [4, 4096], repeats=3)
    assert set(timings) == {(name, n) for name in ("backend", "ring", "broadcast") for n in (4, 4096)}
    assert all(len(timing.samples_s) == 3 and min(timing.samples_s) > 0 for timing in timings.values())


@pytest.mark.nightly
@pytest.mark.mpi
def test_the_same_code_runs_through_mpi():
    found = mpi.clock(["backend", "ring", "server"], 2, [4, 4096], repeats=2)
    assert all(min(timing.samples_s) > 0 for timing in found.values())
    assert len(found) == 6
    script = Path(__file__).with_name("sums_through_mpi.py")
    command = [mpi.mpiexec(), "-n", "3", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[0] == "wrong: []", done.stderr
