import heapq
import random

import pytest

from dltutorial.course.explorers.device import long_run, passages
from dltutorial.course.explorers.device import pipeline as make
from dltutorial.errors import CourseError


def simulated(load_s, step_s, workers, ahead):
    """When each batch is done, event by event: workers with orders to fill, a device that takes batches in order."""
    orders = [[k for k in range(len(load_s)) if k % workers == w] for w in range(workers)]
    allowed, ready, done = [ahead] * workers, set(), []
    busy, device_busy, now = [False] * workers, False, 0.0
    events = []

    def start():
        nonlocal device_busy
        changed = True
        while changed:
            changed = False
            if not device_busy and len(done) in ready and len(done) < len(load_s):
                ready.discard(len(done))
                device_busy = changed = True
                allowed[len(done) % workers] += 1
                heapq.heappush(events, (now + step_s, "step", len(done)))
            for w in range(workers):
                if not busy[w] and orders[w] and allowed[w] > 0:
                    k = orders[w].pop(0)
                    busy[w], changed = True, True
                    allowed[w] -= 1
                    heapq.heappush(events, (now + load_s[k], "load", k))

    start()
    while events:
        now, kind, k = heapq.heappop(events)
        if kind == "load":
            busy[k % workers] = False
            ready.add(k)
        else:
            device_busy = False
            done.append(now)
        start()
    return done


@pytest.mark.parametrize(("workers", "ahead"), [(1, 1), (1, 2), (2, 1), (3, 2), (8, 4)])
def test_the_rules_give_what_an_event_by_event_simulation_gives(workers, ahead):
    draw = random.Random(workers)
    load_s = [draw.expovariate(1 / 0.03) for _ in range(60)]
    found = passages(load_s, 0.011, workers, ahead)
    assert [each.done_s for each in found] == pytest.approx(simulated(load_s, 0.011, workers, ahead))
    assert [each.loaded_s - each.load_s for each in found] == pytest.approx(load_s)


@pytest.mark.parametrize(("load_s", "step_s"), [(0.03, 0.02), (0.02, 0.03), (0.1, 0.001), (0.02, 0.02)])
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_in_the_long_run_the_slower_one_decides(load_s, step_s, workers):
    expected = max(step_s, load_s / workers) if workers else load_s + step_s  # in turns, or the slower of the two
    assert long_run(load_s, step_s, workers, 2, 1) == pytest.approx(expected, rel=0.02)


def test_in_turns_times_add_up_and_nothing_overlaps():
    found = passages([1.0, 2.0, 3.0], 0.5, workers=0)
    assert [each.done_s for each in found] == [1.5, 4.0, 7.5]


def test_batches_ahead_ride_out_a_slow_one_and_cannot_make_up_for_slow_loading():
    rode_out, waited = (long_run(0.01, 0.03, 1, ahead, 8) for ahead in (8, 1))
    assert rode_out == pytest.approx(0.03, rel=0.01)
    assert waited > 1.1 * rode_out
    assert long_run(0.04, 0.03, 1, 8, 1) == pytest.approx(0.04, rel=0.02)


@pytest.mark.parametrize("ahead", [1, 2, 8])
def test_slow_batches_meet_all_workers_so_more_of_them_never_take_longer(ahead):
    each_s = [long_run(0.05, 0.03, workers, ahead, 10) for workers in (1, 2, 4, 8)]
    assert each_s == sorted(each_s, reverse=True)
    assert long_run(0.05, 0.03, 8, 4, 10) == pytest.approx(0.03, rel=0.02)


def test_words_and_picture_say_the_same():
    explorer = make(0.05, 0.03)
    assert "a batch takes 80 ms, and the device works 38% of the time" in explorer.picture().text
    beside = explorer.picture(workers=2)
    assert "2 workers, 2 ahead each: in the long run a batch takes 30 ms, in turns 80 ms, so 2.67 ×" in beside.text
    assert "works 100% of the time" in beside.text
    assert "loading decides" in explorer.picture(workers=1).text


def test_what_cannot_be_gets_one_line():
    with pytest.raises(CourseError, match="Load a batch is nan"):
        make(float("nan"), 1)
