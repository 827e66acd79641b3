import dataclasses
import math

import numpy as np
import pytest

from dltutorial.record import plots
from dltutorial.scaling import clusters, published, simulator, workloads
from dltutorial.scaling.clusters import Cluster, Latency
from dltutorial.scaling.simulator import Spread, simulate

NO_LATENCY = Latency(0.0, 0.0, 0.0, 0.0, 0.0)
ONE_LEVEL = Cluster(1, math.inf, 10e9, latency=NO_LATENCY)
FREE = Cluster(4, math.inf, math.inf, latency=NO_LATENCY)
STEP = workloads.even(25e6, 20).at(100.0)  # 10 ms a sample, 100 MB of gradients
CLUSTERS = [row["cluster"] for row in plots.reference("clusters")]
MANY = np.array([1, 2, 3, 8, 64, 1000, 27360])


def test_without_communication_scaling_is_perfect():
    steps = simulate(STEP, FREE, MANY, 32)
    assert steps.step_s == pytest.approx(np.full(len(MANY), 0.32))


def test_without_overlap_the_parts_add_up():
    steps = simulate(STEP, ONE_LEVEL, MANY, 4, overlap=False)
    ring_s = 2 * (MANY - 1) / MANY * 1e8 / 10e9
    assert steps.step_s == pytest.approx(0.04 + ring_s, rel=1e-9)


def test_long_computing_hides_everything_but_the_last_bucket():
    slow = STEP.at(1e-3)
    steps = simulate(slow, ONE_LEVEL, 64)
    last_s = ONE_LEVEL.all_reduce_s(64, simulator.buckets(slow)[0][-1])
    assert steps.exposed_s == pytest.approx([float(last_s)])


def test_long_communication_hides_the_backward_pass_instead():
    narrow = Cluster(1, math.inf, 1e6, latency=NO_LATENCY)
    steps = simulate(STEP, narrow, 8)
    ready = simulator.buckets(STEP)[1][0]
    communication_s = sum(narrow.all_reduce_s(8, n_bytes) for n_bytes in simulator.buckets(STEP)[0])
    share = simulator.FORWARD_SHARE + (1 - simulator.FORWARD_SHARE) * ready
    assert steps.step_s == pytest.approx(share * 0.01 + communication_s)


@pytest.mark.parametrize("overlap", [True, False])
def test_steps_grow_with_ranks_and_shrink_with_bandwidth(overlap):
    for name in CLUSTERS:
        cluster = clusters.load(name)
        quicker = Cluster(cluster.gpus_per_node, 2 * cluster.intra_bytes_per_s, 2 * cluster.inter_bytes_per_s)
        nodes = cluster.gpus_per_node * 2 ** np.arange(12)
        steps = simulate(STEP, cluster, nodes, 1, overlap=overlap, spread=Spread(0.01))
        assert (np.diff(steps.step_s) > 0).all(), name
        better = simulate(STEP, quicker, nodes, 1, overlap=overlap, spread=Spread(0.01))
        assert (better.step_s <= steps.step_s).all()
        hidden = simulate(STEP, cluster, nodes, 1, overlap=True, spread=Spread(0.01))
        assert (hidden.step_s <= steps.step_s + 1e-12).all()


def test_stragglers_stretch_the_step_as_monte_carlo_does():
    rng = np.random.default_rng(2)
    expected = 0.32 * (1 + 0.02 * rng.standard_normal((5000, 100)).max(1).mean())
    assert simulate(STEP, FREE, 100, 32, spread=Spread(0.02)).step_s == pytest.approx([expected], rel=2e-3)
    both = simulate(STEP, FREE, 100, 32, spread=Spread(speed=0.03, jitter_s=0.04 * 0.32)).straggler_s
    assert both == pytest.approx(simulate(STEP, FREE, 100, 32, spread=Spread(speed=0.05)).straggler_s)


def test_a_ring_costs_what_its_formula_says():
    ring = Cluster(1, math.inf, 5e9, latency=Latency(0, 2e-6, 0, inter_tree_s=1, start_s=0))  # a tree is slower
    assert ring.all_reduce_s(8, 1e9) == pytest.approx(2 * 7 * 2e-6 + 2 * 7 / 8 * 0.2)
    assert ring.all_reduce_s(8, 0) == pytest.approx(2 * 7 * 2e-6)


def test_latency_makes_the_tree_win_when_there_are_many():
    summit = clusters.load("Summit")
    no_tree = dataclasses.replace(summit, latency=Latency(inter_tree_s=1))
    assert summit.all_reduce_s(27360, 1e3) < 0.1 * no_tree.all_reduce_s(27360, 1e3)
    assert summit.all_reduce_s(12, 1e9) == no_tree.all_reduce_s(12, 1e9)


def test_published_networks_have_their_published_sizes():
    assert sum(workloads.resnet50().weights_L) == 25_557_032
    assert sum(workloads.unet3d().weights_L) == 116_977_029
    for network in (workloads.resnet50(), workloads.unet3d(), workloads.even(7e6)):
        assert sum(network.work_L) == pytest.approx(1)


def test_buckets_are_as_many_as_the_tutorial_saw_in_its_profiles():
    unet = workloads.unet3d()
    assert len(simulator.buckets(unet)[0]) == 8
    n_bytes, ready = simulator.buckets(unet)
    assert n_bytes.sum() == sum(unet.weights_L) * unet.bytes_per_value
    assert (np.diff(ready) > 0).all()
    assert ready[-1] == pytest.approx(1)


def test_every_cluster_names_its_source():
    found = {name: clusters.load(name) for name in CLUSTERS}
    assert {"Summit", "Piz Daint", "Perlmutter", "DGX H100", "DGX H200", "Frontier"} <= set(found)
    for cluster in found.values():
        assert 1e9 < cluster.inter_bytes_per_s < 1e12
    for row in plots.reference("clusters"):
        assert len(row["source"]) > 20
    for row in plots.reference("scaling_inputs"):
        assert row["cluster"] in found
        assert row["source"]
        assert row["left_out"]


def test_every_published_run_is_predicted_and_none_was_fitted():
    found = {run.key: run for run in published.runs()}
    assert len(found) == len(plots.reference("scaling_published"))
    for run in found.values():
        assert 0.5 < run.predicted() < run.predicted(Spread()) <= 1
        assert run.error == pytest.approx(run.predicted() - run.efficiency)
    assert found["goyal-256"].base == 8  # "from 8 to 256 GPUs"
    assert found["goyal-256"].predicted() == pytest.approx(0.954, abs=0.002)
    assert abs(found["sc21-64"].error) < 0.05
    assert found["mikami-2176"].error > 0.15  # and here it does not
