from types import SimpleNamespace

import pytest
import torch
from waiting import wait_for

from dltutorial.profile import cpu_time, throughput
from dltutorial.profile.throughput import Phase, Throughput

BATCH = (torch.zeros(4, 2), torch.zeros(4))


def split(full_s=0.25, wait_s=0.0, io_cores=1.0, step_cores=1.0, full_cores=1.0):
    return Throughput(
        io=Phase(0.1, 0.1, io_cores, 1.0),
        synthetic=Phase(0.2, 0.0, step_cores, 1.0),
        full=Phase(full_s, wait_s, full_cores, 1.0),
        cores=2,
    )


class Clock:
    """Time that passes only where a test says so, and the CPU seconds wanted in it."""

    def __init__(self):
        self.now_s = self.wanted_s = 0.0

    def sleep(self, seconds):
        self.now_s += seconds

    def compute(self, seconds):
        self.now_s += seconds
        self.wanted_s += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    for name in ("wanted_s", "thread_wanted_s"):
        monkeypatch.setattr(cpu_time, name, lambda: clock.wanted_s)
    return clock


def measured(load, step):
    class Loader:
        def __iter__(self):
            while True:
                load()
                yield BATCH

    return throughput.measure(Loader(), lambda batch: step(), rounds=3, phase_s=0.1)


def test_wanting_the_same_core_shows_as_core_seconds_that_neither_wanted_alone():
    assert split(full_s=0.3).queueing == pytest.approx(1)
    assert split(full_s=0.3, full_cores=2.0).queueing == pytest.approx(2)


def test_times_add_up_when_nothing_overlaps(clock):
    result = measured(lambda: clock.sleep(0.01), lambda: clock.sleep(0.03))
    assert result.full.batch_s == pytest.approx(0.04)
    assert result.share_of_limit == pytest.approx(0.75)
    assert not result.overlapped
    assert (result.io.batch_s, result.synthetic.batch_s, result.full.wait_s) == pytest.approx((0.01, 0.03, 0.01))
    assert (result.io.cores, result.synthetic.cores, result.full.cores, result.synthetic.thread_share) == (0, 0, 0, 0)


def test_a_step_that_computes_wants_a_core_for_itself(clock):
    result = measured(lambda: clock.sleep(0.01), lambda: clock.compute(0.03))
    assert (result.io.cores, result.synthetic.cores, result.synthetic.thread_share) == pytest.approx((0, 1, 1))
    assert result.full.cores == pytest.approx(3 / 4)
    assert not result.overlapped


def test_what_loads_beside_the_step_lets_it_wait_for_the_rest_only(clock):
    ready_s = 0.0

    def load():
        nonlocal ready_s
        clock.now_s = max(clock.now_s, ready_s)
        ready_s = clock.now_s + 0.03  # the next one is begun when this one is taken

    result = measured(load, lambda: clock.sleep(0.02))
    assert result.overlapped
    assert result.share_of_limit == pytest.approx(1)
    assert result.full.wait_s == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("cores", "overlapped"),
    [((0.2, 0.15, 0.3), False), ((1.0, 1.0, 1.1), False), ((1.0, 1.0, 1.2), True), ((0.3, 1.0, 1.25), True),
     ((4.0, 1.0, 4.5), False), ((4.0, 1.0, 4.7), True)],
)  # fmt: skip
def test_overlap_shows_in_cores_only_by_a_sizeable_part_of_one(cores, overlapped):
    io_cores, step_cores, full_cores = cores
    result = split(wait_s=0.1, io_cores=io_cores, step_cores=step_cores, full_cores=full_cores)
    assert result.overlapped == overlapped


def test_what_ends_is_started_again_and_the_whole_batch_reaches_the_step():
    batches = []
    throughput.measure([{"x": BATCH}], batches.append, rounds=1, phase_s=0.001)
    assert len(batches) >= 8
    assert all(batch["x"][0].shape == (4, 2) for batch in batches)


def test_batches_keep_their_form_on_the_way_to_the_device():
    batch = {"x": [BATCH[0], "name"], "n": 3, "pair": BATCH}
    moved = throughput.to_device(batch, "cpu")
    assert moved["x"][1] == "name"
    assert isinstance(moved["pair"], tuple)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_and_its_workers_are_measured_and_ended(workers):
    data = torch.utils.data.TensorDataset(torch.zeros(64, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=workers)
    throughput.measure(loader, lambda batch: None, rounds=1, phase_s=0.01)
    assert throughput.made_ahead(loader) == 2 * workers
    wait_for(lambda: not torch.multiprocessing.active_children())
