"""The explorers of chapters 08, 09, 11 and 16: their numbers, found in another way."""

import dataclasses
import itertools
import random
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from explorer_examples import examples

from dltutorial.comm.collectives import ALL_REDUCES
from dltutorial.comm.cost import Prices, Regimes, counts
from dltutorial.config import PRESETS, Recipe
from dltutorial.course.explorers.explorer import size
from dltutorial.course.explorers.memory import memory as make_memory
from dltutorial.course.explorers.scale import LINKS, MODES, hidden_share, leads
from dltutorial.course.explorers.scale import allreduce as make_allreduce
from dltutorial.course.explorers.scale import overlap as make_overlap
from dltutorial.course.explorers.scale import scaling as make_scaling
from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import Link, Step
from dltutorial.profile.memory import Shape, of_step
from dltutorial.profile.timing import duration, three
from dltutorial.scaling import clusters, published, simulator, workloads

EXPLORERS = {
    "allreduce": make_allreduce(Prices(5e-5, 1e-9, 2e-10)),
    "memory": make_memory(Recipe()),
    "overlap": make_overlap(Step([400, 0, 10**6, 3 * 10**6], 0.02, 0.01), Link(1e-4, 1e9), bucket_mib=2),
    "scaling": examples()["scaling"],
}


def values(explorer):
    return {name: control.value for name, control in explorer.controls.items()}


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_control_at_its_ends_alone_and_all_at_once_gives_a_picture(name):
    explorer = EXPLORERS[name]
    ends = {}
    for control, widget in explorer.controls.items():
        pairs = [option if isinstance(option, tuple) else (option, option) for option in widget.options]
        ends[control] = (pairs[0][1], pairs[-1][1])
    moves = [{control: value} for control, pair in ends.items() for value in pair]
    moves += [{control: pair[which] for control, pair in ends.items()} for which in (0, 1)]
    for move in moves:
        words = explorer.draw(MagicMock(), SimpleNamespace(**(values(explorer) | move)))
        assert not re.search(r"\b(nan|inf)\b", words), move


# All-reduce: messages passed by hand, round by round


def ring_rounds(ranks, where=None):
    """Rounds of (from, to, chunk, whether it is added)."""
    where = where or list(range(ranks))
    share = [[(r, (r + 1) % ranks, (r - step) % ranks, True) for r in range(ranks)] for step in range(ranks - 1)]
    hand = [[(r, (r + 1) % ranks, (r + 1 - step) % ranks, False) for r in range(ranks)] for step in range(ranks - 1)]
    return [[(where[a], where[b], (chunk, ranks), add) for a, b, chunk, add in turn] for turn in share + hand]


def tree_rounds(ranks, first=0):
    up, leap = [], 1
    while leap < ranks:
        up.append([(first + r + leap, first + r, (0, 1), True) for r in range(0, ranks - leap, 2 * leap)])
        leap *= 2
    return up, [[(b, a, whole, False) for a, b, whole, _ in turn] for turn in reversed(up)]


def rounds_of(name, p, node):
    if name == "ring":
        return ring_rounds(p)
    if name == "tree":
        up, down = tree_rounds(p)
        return up + down
    if name == "doubling":
        return [[(r, r ^ 2**k, (0, 1), True) for r in range(p)] for k in range(p.bit_length() - 1)]
    if name == "server":
        return [[(r, 0, (0, 1), True) for r in range(1, p)], [(0, r, (0, 1), False) for r in range(1, p)]]
    inside = [tree_rounds(node, first) for first in range(0, p, node)]
    up, down = (
        [list(itertools.chain(*turns)) for turns in zip(*(trees[way] for trees in inside), strict=True)]
        for way in (0, 1)
    )
    return up + ring_rounds(p // node, list(range(0, p, node))) + down


def passed(rounds, p, n):
    """The ranks' vectors at the end; of every rank, its rounds, bytes (the larger of in and out), and bytes added."""
    x = np.array([[10.0**r] * n for r in range(p)])
    busy = np.zeros((p, 3))
    for turn in rounds:
        before, traffic = x.copy(), np.zeros((p, 2))
        for sender, receiver, (chunk, of), add in turn:
            part = slice(chunk * n // of, (chunk + 1) * n // of)
            x[receiver, part] = before[sender, part] + (x[receiver, part] if add else 0)
            n_bytes = part.stop - part.start
            traffic[[sender, receiver], [0, 1]] += n_bytes
            busy[receiver, 2] += add * n_bytes
        busy[:, 0] += traffic.any(1)
        busy[:, 1] += traffic.max(1)
    return x, busy


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("name", ["ring", "tree", "doubling", "server", "hierarchical"])
def test_an_all_reduce_costs_what_its_messages_cost_one_round_after_the_other(name, p):
    n, prices, node = 240, Prices(3e-5, 2e-9, 5e-10, lanes=p), 2
    x, busy = passed(rounds_of(name, p, node), p, n)
    assert (x == sum(10.0**r for r in range(p))).all()
    by_hand_s = (busy @ [prices.message_s, prices.byte_s, prices.reduced_byte_s]).max()
    assert prices.seconds(counts(name, p, n, node)) == pytest.approx(by_hand_s)


@pytest.mark.parametrize("seed", range(12))
def test_the_one_that_leads_is_the_quickest_at_every_size(seed):
    rng = random.Random(seed)
    p, node = rng.randint(2, 600), rng.choice([1, 4, 8])
    prices = Prices(*(10 ** rng.uniform(low, low + 3) for low in (-6, -11, -11)), lanes=rng.choice([1, p]))
    bytes_N = np.geomspace(16, 2**32, 1401)
    seconds_AN = np.array([[prices.seconds(counts(name, p, n, node)) for n in bytes_N] for name in ALL_REDUCES])
    order = leads(seconds_AN)
    assert [start for start, _ in order] == sorted(start for start, _ in order)
    for at, n_bytes in list(enumerate(bytes_N))[::7]:
        leader = [names for start, names in order if start <= n_bytes * (1 + 1e-9)][-1].split(" = ")[0]
        assert seconds_AN[list(ALL_REDUCES).index(leader), at] == pytest.approx(seconds_AN[:, at].min(), rel=1e-6)


def test_the_words_say_who_is_quickest_and_where_that_changes():
    prices = Prices(1e-5, 1e-9, 0.0, lanes=16)
    shown = make_allreduce(prices, ranks=16).picture(n_bytes=2**20, node=16, adding=1000)
    # Doubling: 4 rounds of n; ring: 30 rounds of n / 16; server: 2 rounds of 15 n.
    assert "1 MiB on 16 ranks, quickest first: ring " in shown.text
    assert ", server 31.5 ms. Quickest for" in shown.text
    found = re.search(r"is server; from (\d+) B on doubling; from (\d+) KiB on ring", shown.text)
    first, second = float(found[1]), 1024 * float(found[2])
    assert first == pytest.approx(2e-5 / (26 * 1e-9), rel=0.03)
    assert second == pytest.approx(26e-5 / (17 / 8 * 1e-9), rel=0.03)


def test_on_one_lane_all_messages_count_and_the_explorer_starts_at_the_fitted_prices():
    small, large = Prices(2e-5, 1e-10, 0.0), Prices(2e-5, 4e-10, 1e-10)
    explorer = make_allreduce(Regimes(small, large, 2**20), ranks=4)
    start = values(explorer)
    assert start["latency"] == pytest.approx(20)
    assert start["bandwidth"] == pytest.approx(2.5)
    assert (start["ranks"], start["links"], start["adding"]) == (4, LINKS[1], pytest.approx(10))
    alone, shared = (explorer.picture(links=links).text for links in LINKS)
    ring_s = [large.seconds(counts("ring", 4, 2**20))]
    ring_s.append(dataclasses.replace(large, lanes=4).seconds(counts("ring", 4, 2**20)))
    for text, seconds in zip((shared, alone), ring_s, strict=True):
        assert re.search(rf"\bring {re.escape(duration(seconds))}[,.]", text)
    assert ring_s[0] > ring_s[1]


def quickest(text):
    """Names of those that take the least time, by the words."""
    told = [entry.split(" ", 1) for entry in re.search(r"quickest first: (.*?)\. Quickest", text)[1].split(", ")]
    return {name for name, time in told if time == told[0][1]}


def test_those_that_cost_the_same_share_the_lead():
    """On one lane a server and a tree send as much: 2 (p - 1) messages of n; a hierarchy of one node is that tree."""
    text = make_allreduce(Prices(1e-5, 1e-9, 0.0), ranks=4, node_size=4).picture(n_bytes=1024).text
    assert quickest(text) == {"tree", "server", "hierarchical"}
    assert "tree = server = hierarchical" in text
    alone = make_allreduce(Prices(1e-5, 1e-9, 0.0), ranks=4, node_size=2).picture(n_bytes=1024).text
    assert quickest(alone) == {"tree", "server"}


def test_the_words_name_each_time_once_and_each_lead_once():
    explorer = make_allreduce(Prices(1e-7, 1e-9, 0.0, lanes=4096), ranks=4096)
    for n_bytes in (16, 2**20, 2**31):
        first, leaders = explorer.picture(n_bytes=n_bytes).text.split(" Quickest for the smallest messages is ")
        told = re.findall(r"ring|tree|doubling|server|hierarchical", first)
        assert len(told) == len(set(told))
        assert "from 0 B on" not in leaders


def test_a_price_that_the_fit_set_to_0_begins_at_an_end():
    start = values(make_allreduce(Prices(0.0, 0.0, 0.0)))
    assert (start["latency"], start["bandwidth"], start["adding"]) == (0.1, 1000, 1000)


# Overlap: an event simulation of its own


def simulated(sizes, backward_s, limit, link, overlap):
    """(bytes, start, end) of each message: gradients come one after the other, one network sends them."""
    clock_s, whole, heap, waiting = 0.0, sum(sizes), 0, []
    for number, n_bytes in enumerate(sizes):
        clock_s += backward_s * n_bytes / whole
        heap += n_bytes
        if heap >= limit or number == len(sizes) - 1:
            waiting.append((clock_s if overlap else backward_s, heap))
            heap = 0
    sent, free_s = [], 0.0
    while waiting:
        ready_s, n_bytes = waiting.pop(0)
        start_s = ready_s if ready_s > free_s else free_s
        free_s = start_s + link.latency_s + n_bytes / link.bytes_per_s
        sent.append((n_bytes, start_s, free_s))
    return sent


@pytest.mark.parametrize("seed", range(15))
def test_messages_leave_and_arrive_as_in_an_event_simulation(seed):
    rng = random.Random(seed)
    step = Step([rng.randint(1, 10**6) for _ in range(rng.randint(1, 60))], rng.uniform(1e-3, 0.1), 0.01)
    link = Link(10 ** rng.uniform(-6, -2), 10 ** rng.uniform(7, 11))
    limit, early = 10 ** rng.uniform(2, 8), rng.random() < 0.7
    sent, expected = step.messages(link, limit, overlap=early), simulated(
        step.gradient_bytes, step.backward_s, limit, link, early
    )  # fmt: skip
    assert np.allclose([dataclasses.astuple(message) for message in sent], expected)
    assert step.seconds(link, limit, overlap=early) == pytest.approx(0.01 + max(step.backward_s, expected[-1][2]))
    times_s = np.linspace(0, expected[-1][2], 200_001)
    under_way = np.zeros_like(times_s, dtype=bool)
    for _, start_s, end_s in expected:
        under_way |= (times_s >= start_s) & (times_s < end_s)
    hidden = (under_way & (times_s < step.backward_s)).sum() / under_way.sum()
    assert hidden_share(sent, step.backward_s) == pytest.approx(hidden, abs=1e-3)


def test_the_words_and_bars_are_those_of_the_messages():
    explorer = make_overlap(Step([2**20] * 10, 0.010, 0.005), Link(1e-3, 2**20 / 1e-3), bucket_mib=2)
    # A bucket of 2 MiB takes 3 ms and one is ready every 2 ms: sent from 2 ms on without a pause, until 17 ms.
    shown = explorer.picture()
    assert "Buckets of 2 MiB: 5 messages, a step of 22 ms." in shown.text
    assert "Of 15 ms of communication 53% hides behind the backward pass, 7 ms sticks out" in shown.text
    assert "Sent after it, the step takes 30 ms, 1.36 × as long" in shown.text
    assert ": 1 message, " in explorer.picture(bucket=256).text
    best = float(re.search(r"bucket sizes is .*: ([\d.]+) ms", shown.text)[1])
    assert best <= 22


def test_one_huge_gradient_is_one_message():
    shown = make_overlap(Step([2**30], 0.010, 0.005), Link(1e-3, 2**40)).picture().text
    assert "Buckets of 1 GiB: 1 message, a step of 17" in shown


def test_nothing_sticks_out_of_a_quick_network_but_the_last_message():
    explorer = make_overlap(Step([2**20] * 10, 0.010, 0.005), Link(1e-5, 1e9), bucket_mib=1)
    shown = explorer.picture(bandwidth=100, latency=1e-4).text
    assert "a step of 15 ms" in shown
    assert "90% hides" in shown


# Scaling: the simulator, asked directly, and the laws

WORK = dataclasses.replace(workloads.even("test", 10e6), sample_s=0.01)
SUMMIT = clusters.load("Summit")


def told_efficiency(text):
    return float(re.search(r"efficiency ([\d.]+)%", text)[1]) / 100


@pytest.mark.parametrize("gpus", [1, 2, 100, 27_360])
def test_efficiencies_are_those_of_the_simulator(gpus):
    explorer = make_scaling(WORK, SUMMIT, samples=4)
    spread = published.GPU_SPREAD
    one_s, many_s = simulator.simulate(WORK, SUMMIT, [1, gpus], 4, spread=spread).step_s
    assert told_efficiency(explorer.picture(gpus=gpus).text) == pytest.approx(one_s / many_s, abs=6e-4)
    one_s, many_s = simulator.simulate(WORK, SUMMIT, [1, gpus], [4, 4 / gpus], spread=spread).step_s
    strong = told_efficiency(explorer.picture(gpus=gpus, mode=MODES[1]).text)
    assert strong == pytest.approx(one_s / (gpus * many_s), abs=6e-4)
    late = simulator.simulate(WORK, SUMMIT, [1, gpus], 4, spread=spread, overlap=False).step_s
    assert told_efficiency(explorer.picture(gpus=gpus, overlap=False).text) == pytest.approx(
        late[0] / late[1], abs=6e-4
    )


def test_moved_sliders_are_other_gradients_links_and_latencies():
    explorer = make_scaling(WORK, SUMMIT, samples=4)
    heavy = dataclasses.replace(WORK, weights_L=tuple(3 * w for w in WORK.weights_L), sample_s=0.02)
    hop = dataclasses.replace(SUMMIT.latency, **{
        name: 5 * seconds for name, seconds in dataclasses.asdict(SUMMIT.latency).items()
    })  # fmt: skip
    slow = dataclasses.replace(SUMMIT, inter_bytes_per_s=1e9, latency=hop)
    found = simulator.simulate(heavy, slow, [1, 500], 4, spread=simulator.Spread(0.02, 0.003))
    start = values(explorer)
    shown = explorer.picture(
        gpus=500, step=2 * start["step"], gradients=3 * start["gradients"], bandwidth=1.0,
        latency=5 * start["latency"], speed=2, jitter=3,
    ).text  # fmt: skip
    assert f"A step takes {duration(found.step_s[1])}: {duration(found.compute_s[1])} computing" in shown
    assert f"{duration(found.straggler_s[1])} waiting for the slowest" in shown
    assert f"{duration(found.exposed_s[1])} for gradients that nothing hides" in shown


def test_one_gpu_is_as_efficient_as_itself_and_a_perfect_machine_loses_nothing():
    explorer = make_scaling(WORK, SUMMIT, samples=4)
    assert told_efficiency(explorer.picture(gpus=1).text) == 1
    assert told_efficiency(explorer.picture(gpus=1, jitter=100, speed=10).text) == 1
    ideal = dataclasses.replace(SUMMIT, intra_bytes_per_s=np.inf)
    shown = make_scaling(WORK, ideal).picture(speed=0, jitter=0, latency=explorer.controls["latency"].options[0][1],
                                              bandwidth=explorer.controls["bandwidth"].options[-1][1])  # fmt: skip
    assert told_efficiency(shown.text) > 0.99


def test_beside_strong_scaling_the_words_say_that_published_runs_scaled_weakly():
    explorer = make_scaling(WORK, SUMMIT, samples=4)
    assert explorer.picture(gpus=200, mode=MODES[1]).text.endswith("% (weak scaling).")
    assert "(weak scaling)" not in explorer.picture(gpus=200).text


@pytest.mark.parametrize(("gpus", "run"), [(27_360, "kurth-summit"), (1500, "mikami-1088")])
def test_the_published_run_of_the_nearest_size_is_told(gpus, run):
    assert f"Published nearest to it: {run}, " in make_scaling(WORK, SUMMIT).picture(gpus=gpus).text


# Memory: the model that test_memory.py holds against torch


def test_memory_starts_at_the_recipe_and_says_what_is_drawn():
    recipe = Recipe.of(PRESETS["laptop"], precision="bf16", optimizer="sgd")
    explorer, shape = make_memory(recipe, device_gib=16), Shape.of(recipe)
    found = of_step(shape, recipe.global_batch_size, "16-bit autocast", "sgd", ranks=8)
    shown = explorer.picture()
    assert f"{shape.parameters:,} weights" in shown.text
    assert f"{size(found.total)} in all, fits into 16 GiB" in shown.text


def test_memory_says_when_a_step_does_not_fit_and_what_would_help():
    explorer = make_memory(Recipe.of(PRESETS["gpu"]), device_gib=40)
    big = {"dim": 8192, "depth": 48, "batch": 1, "formats": "16-bit weights", "checkpointing": True}
    assert "too much for 40 GiB" in explorer.picture(**big).text
    assert "Not even one sample fits" in explorer.picture(**big, ranks=2).text
    sharded = explorer.picture(**big, ranks=256, stage=3).text
    assert "fits into 40 GiB" in sharded
    assert int(re.search(r"largest batch that fits is (\d+)", sharded)[1]) >= 1


# Words


def test_sizes_and_times_have_three_digits_and_a_unit_that_suits():
    assert [size(n) for n in (8, 1024, 1500, 1023.7, 2**20 - 1, 5 * 2**30, 2**62)] == [
        "8 B", "1 KiB", "1.46 KiB", "1 KiB", "1 MiB", "5 GiB", "4,096 PiB",
    ]  # fmt: skip
    assert [duration(s) for s in (2e-6, 0.0123, 1, 25_657)] == ["2 µs", "12.3 ms", "1 s", "25,657 s"]
    assert [three(x) for x in (0, 999.6, 0.5, 45.62, 3e-7, 2e12)] == ["0", "1,000", "0.5", "45.6", "3e-07", "2e+12"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: make_overlap(Step([], 0.1, 0.1), Link(1e-3, 1e9)), "no gradients"),
        (lambda: make_overlap(Step([8], float("nan"), 0.1), Link(1e-3, 1e9)), "Backward pass is nan; give a positive"),
        (lambda: make_overlap(Step([8], 0.1, 0.1), Link(1e-3, 1e9), bucket_mib=-1), "Bucket is -1"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(call, why):
    with pytest.raises(CourseError, match=why):
        call()
