"""The course's collectives give what the backend's give, and take what the formulas say: on 1 to 8 real ranks."""

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
DIVISIBLE = 840  # by 1 … 8
launch = functools.partial(launch_auto, backend="gloo")  # also where there are GPUs


@pytest.mark.parametrize("p", [*range(1, 5), *(pytest.param(p, marks=pytest.mark.ci) for p in range(5, 9))])
def test_all_dtypes_and_odd_sizes_equal_the_backends(p):
    assert launch(collecting.all_against_backend, p) == [[]] * p


def test_chunks_of_one_size_equal_torchs_own_gather_and_scatter():
    assert launch(collecting.gathers_like_torch, 3, 5) == [True] * 3


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_every_rank_holds_the_same_bits(name):
    first, *others = launch(collecting.bits, 3, name)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("p", range(1, 9))
def test_counted_rounds_messages_and_bytes_are_the_formulas(p):
    for node_size in (2, 3):
        found = launch(collecting.counted, p, DIVISIBLE, node_size)
        for name in stopwatch.OURS:
            assert tally(rank[name] for rank in found) == counts(name, p, 4 * DIVISIBLE, node_size), name


def test_a_ring_sends_all_but_one_chunk_twice_also_with_uneven_ones():
    for rank, traffic in enumerate(launch(collecting.ring_traffic, 3, 7)):
        chunk = [3, 2, 2]
        assert traffic.messages == traffic.rounds == 4
        assert traffic.sent_bytes == 4 * (2 * 7 - chunk[rank] - chunk[(rank + 1) % 3])
    assert [traffic.messages for traffic in launch(collecting.ring_traffic, 3, 0)] == [0] * 3


def test_only_leaders_of_nodes_send_to_other_nodes():
    found = launch(collecting.counted, 4, DIVISIBLE, 2)
    n_bytes = 4 * DIVISIBLE
    assert [rank["hierarchical"].far_bytes for rank in found] == [n_bytes, 0, n_bytes, 0]
    assert [rank["ring"].far_bytes for rank in found] == [0, 1.5 * n_bytes, 0, 1.5 * n_bytes]


def test_wrong_use_is_told_in_one_line():
    said, _ = launch(collecting.refused, 2)
    assert "not contiguous; pass x.contiguous()" in said["not contiguous"]
    assert "not contiguous; send x.contiguous()" in said["sent not contiguous"]
    assert "has no peer 0" in said["to itself"]
    assert "has no peer 2" in said["to nobody"]
    assert "gloo carries tensors on cpu, not on meta" in said["on another device"]


def test_subsets_side_by_side_do_not_disturb_each_other():
    assert launch(collecting.two_subsets_at_once, 4) == [(2.0, 2), (4.0, 2), (2.0, 2), (4.0, 2)]


def test_the_stopwatch_times_every_name_and_size_on_the_slowest_rank():
    found = stopwatch.clock(["backend", "ring", "broadcast"], 2, [4, 4096], repeats=3)
    assert set(found) == {(name, n) for name in ("backend", "ring", "broadcast") for n in (4, 4096)}
    assert all(len(timing.samples_s) == 3 and timing.best_s > 0 for timing in found.values())


@pytest.mark.ci
@pytest.mark.mpi
def test_the_same_code_runs_through_mpi():
    found = mpi.clock(["backend", "ring", "server"], 2, [4, 4096], repeats=2)
    assert all(timing.best_s > 0 for timing in found.values())
    assert len(found) == 6
    script = Path(__file__).with_name("sums_through_mpi.py")
    command = [mpi.mpiexec(), "-n", "3", sys.executable, script]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.stdout.split("\n")[0] == "wrong: []", said.stderr
