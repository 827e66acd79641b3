import itertools

import pytest

from dltutorial.course.checks.simulated import SimulatedRun
from dltutorial.profile import events


def kernels(trace):
    return [event for event in trace.events if event.category == "kernel"]


def launches(trace):
    return [event for event in trace.events if event.name == "cudaLaunchKernel"]


@pytest.mark.parametrize("run", [SimulatedRun(), SimulatedRun(kernel_s=1e-6), SimulatedRun(synchronise_every=3)])
def test_kernels_run_one_after_the_other_and_none_before_its_launch(run):
    trace = run.trace(1)
    ran = kernels(trace)
    assert len(ran) == run.steps * run.kernels
    assert all(late.start_s >= early.end_s - 1e-12 for early, late in itertools.pairwise(ran))
    pairs = zip(launches(trace), ran, strict=True)
    assert all(kernel.start_s >= launch.end_s - 1e-12 for launch, kernel in pairs)


def test_a_synchronising_call_returns_when_the_queue_is_empty():
    trace = SimulatedRun(synchronise_every=5).trace()
    for call in (event for event in trace.events if event.name == "cudaStreamSynchronize"):
        launched = sum(launch.end_s <= call.start_s + 1e-12 for launch in launches(trace))
        assert kernels(trace)[launched - 1].end_s <= call.end_s + 1e-12


def test_a_batch_made_ahead_is_waited_for_only_until_it_is_there():
    def waited(prefetch):
        trace = SimulatedRun(load_s=5e-3, prefetch=prefetch).trace()
        return sum(event.duration_s for event in trace.events if event.name == "load")

    assert waited(2) < 0.5 * waited(0)


def test_a_seed_gives_the_same_trace_again_and_another_seed_another():
    assert SimulatedRun().trace(3) == SimulatedRun().trace(3) != SimulatedRun().trace(4)


def test_stretches_of_time_are_merged_clipped_and_subtracted():
    assert events.merged([(3, 5), (0, 1), (1, 2), (4, 6)]) == [(0, 2), (3, 6)]
    assert events.length([(0, 2), (1, 3)]) == 3
    assert events.clip([(0, 2), (3, 6)], 1, 4) == [(1, 2), (3, 4)]
    assert events.without([(0, 10)], [(2, 3), (5, 7), (9, 12)]) == [(0, 2), (3, 5), (7, 9)]
    assert events.without([(0, 1)], [(0, 1)]) == []
    assert [events.covers([(0, 2), (3, 6)], moment_s) for moment_s in (1, 2, 3)] == [True, False, True]
