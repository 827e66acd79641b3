"""Data parallelism on real ranks equals one process, and its all-reduces have the predicted sizes and order."""

import math

import pytest
import replicas
import torch
from chapter_code import written
from torch import nn

from dltutorial.launch import RankFailed, RanksHang, launch
from dltutorial.parallel.bucket_model import Link, Step
from dltutorial.parallel.buckets import make_buckets
from dltutorial.profile.events import Event, Trace, TraceRow
from dltutorial.profile.trace_summary import Overlap, overlap

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
ROUNDING, ROUNDING_FP32 = 1e-12, 1e-6
CASES = ("equal_to_one_process", "buffers", "evaluation_on_rank_0_alone", "gradients_of_zero", "messages")


@pytest.fixture(scope="module")
def results():
    """Run all cases in one launch. The results are listed by rank."""
    return launch(replicas.many_cases, 2, *CASES, timeout_s=100)


def test_five_updates_equal_those_of_one_process_on_the_global_batch(results):
    for rank in results:
        differences = rank["equal_to_one_process"]
        assert differences.pop("moved") > 0.1
        assert len(differences) == 2 * (len(replicas.OURS) + 1)
        assert max(differences.values()) < ROUNDING_FP32  # one weight is float32


def test_an_unused_parameter_is_one_clear_error_and_no_deadlock():
    with pytest.raises(RankFailed, match=r"no gradient for (spare|last)\.weight.*find_unused_parameters=True"):
        launch(replicas.unused_without_leave, 2, "overlapped", timeout_s=100)


def test_ranks_with_parameters_in_another_order_get_one_clear_error():
    words = r"rank 1 holds another model than rank 0 \(parameter 0 is last\.weight .* on rank 0 first\.weight"
    with pytest.raises(RankFailed, match=words):
        launch(replicas.other_order, 2, timeout_s=60)


def test_buffers_are_those_of_rank_0_as_in_torchs_ddp(results):
    for rank in results:
        assert max(rank["buffers"].values()) < ROUNDING


def test_rank_0_can_evaluate_alone_between_training_steps(results):
    for rank in results:
        assert rank["evaluation_on_rank_0_alone"] == 0


def test_an_unused_parameter_with_a_gradient_of_zero_enters_the_mean(results):
    for rank in results:
        assert max(rank["gradients_of_zero"].values()) < ROUNDING_FP32


def test_a_rank_with_more_batches_ends_at_the_timeout():
    with pytest.raises(RanksHang, match=r"rank 0 had returned|rank 1 waits") as caught:
        launch(replicas.uneven_without_join, 2, timeout_s=10)
    assert caught.value.waiting == (1,)


def test_only_overlapped_all_reduces_start_before_the_end_of_the_backward_pass(results):
    over = ("backward is over", 0)
    for rank in results:
        sent = rank["messages"]
        assert sent["naive"] == [over] + [("send", 9)] * 4
        assert sent["one bucket"] == [over, ("send", 36)]
        assert sorted(sent["overlapped"]) == sorted(sent["one bucket"])
        assert sent["many buckets"] == [over] + [("send", 9)] * 4
        early = sent["overlapped, many buckets"]
        assert sorted(early) == sorted(sent["many buckets"])
        assert early.index(over) >= 3


def test_the_error_of_compression_is_that_of_its_dtype():
    for found in launch(replicas.compressed, 2, written("further/09", "scaled_fp16")["scaled_fp16"], timeout_s=100):
        assert found["mean"] < 1e-6
        assert 1e-6 < found["fp16"] < 1e-2
        assert found["fp16, tiny"] > 0.05
        assert found["scaled, tiny"] < 1e-3
        assert not found["scaled too far"] < 1
        assert 1e-3 < found["power"] < 1.5
        assert found["fp16, ours against torch's"] < 1e-6


# Without ranks


def test_buckets_are_filled_from_the_last_layer_and_of_one_kind():
    sizes = [3, 100, 2, 2, 5]
    parameters = [nn.Parameter(torch.zeros(n)) for n in sizes]
    parameters[3] = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    frozen = nn.Parameter(torch.zeros(7), requires_grad=False)
    buckets = make_buckets([*parameters, frozen], cap_bytes=40, first_bytes=20)
    assert [[p.numel() for p in bucket.parameters()] for bucket in buckets] == [[5], [2, 100], [2], [3]]
    assert [bucket.index() for bucket in buckets] == list(range(4))
    assert [bucket.is_last() for bucket in buckets] == [False] * 3 + [True]
    assert {bucket.buffer().dtype for bucket in buckets} == {torch.float32, torch.float64}


def test_the_model_knows_when_overlap_helps_and_when_small_buckets_hurt():
    step = Step([2**20] * 20, backward_s=0.1, rest_s=0.05)
    link = Link(latency_s=1e-3, bytes_per_s=2**20 * 250)
    together = step.seconds(link, 2**30, overlap=False)
    assert together == pytest.approx(0.15 + 1e-3 + 20 / 250)
    assert step.seconds(link, 0, overlap=False) == pytest.approx(0.15 + 20 * (1e-3 + 1 / 250))
    assert step.seconds(link, 0, overlap=True) == pytest.approx(0.05 + 0.1 / 20 + 20 * 5e-3)
    assert step.seconds(link, 2**20, overlap=True) == step.seconds(link, 0, overlap=True)
    slow = Link(latency_s=20e-3, bytes_per_s=1e12)
    assert step.seconds(slow, 2**30, overlap=True) < step.seconds(slow, 0, overlap=True)


@pytest.mark.parametrize("lag", [0, 2])
def test_chapter_09_s_descent_with_lag_diverges_just_beyond_the_largest_stable_rate(lag):
    known = {"A": torch.zeros(1, 1), "hessian": torch.full((1, 1), 4.0).double(), "slope": torch.ones(1).double()}
    converges = written("further/09", "converges", **known)["converges"]
    limit = 2 * math.sin(math.pi / (4 * lag + 2)) / 4
    assert converges(0.97 * limit, lag)
    assert not converges(1.03 * limit, lag)


def test_chapter_14_averages_tensors_of_any_shape_by_one_all_reduce():
    for found in launch(replicas.averaged, 2, written("14", "average")["average"], timeout_s=60):
        assert found == ([[0.5, 0.5], [1.5, 1.5]], [[2.5]], 1)


def test_hidden_communication_is_what_overlaps_with_computation():
    rows = [TraceRow("host"), TraceRow("gloo")]
    node = "autograd::engine::evaluate_function: "
    events = [
        Event(node + "MmBackward0", "operator", 0.0, 4.0, 0),
        Event(node + "torch::autograd::AccumulateGrad", "operator", 4.0, 2.0, 0),
        Event("gloo:all_reduce", "range", 3.0, 4.0, 1),
    ]
    assert overlap(Trace.of(events, rows)) == Overlap(1, 4.0, 1.0)
    on_gpu = [*events, Event("ncclDevKernel_AllReduce", "kernel", 10.0, 2.0, 2), Event("gemm", "kernel", 11.0, 3.0, 3)]
    found = overlap(Trace.of(on_gpu, [*rows, TraceRow("GPU 0 stream 1", 0), TraceRow("GPU 0 stream 2", 0)]))
    assert (found.communication_s, found.hidden_s) == (6.0, 1.0)
