"""Buckets, averages over ranks, and overlap in a trace."""

import pytest
import replicas
import torch
from chapter_code import written
from torch import nn

from dltutorial.launch import launch
from dltutorial.parallel.buckets import make_buckets
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.trace_summary import Overlap, overlap

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")


def test_buckets_are_filled_from_the_last_layer():
    sizes = [3, 100, 2, 2, 5]
    parameters = [nn.Parameter(torch.zeros(n)) for n in sizes]
    frozen = nn.Parameter(torch.zeros(7), requires_grad=False)
    buckets = make_buckets([*parameters, frozen], limit_bytes=40)
    assert [[p.numel() for p in bucket] for bucket in buckets] == [[5, 2, 2, 100], [3]]


def test_chapter_14_averages_tensors_of_any_shape_by_one_all_reduce():
    for found in launch(replicas.averaged, 2, written("14", "average")["average"], timeout_s=60):
        assert found == ([[0.5, 0.5], [1.5, 1.5]], [[2.5]], 1)


def test_hidden_communication_is_what_overlaps_with_computation():
    rows = ["host", "gloo"]
    node = "autograd::engine::evaluate_function: "
    events = [
        Event(node + "MmBackward0", "operator", 0.0, 4.0, 0),
        Event(node + "torch::autograd::AccumulateGrad", "operator", 4.0, 2.0, 0),
        Event("gloo:all_reduce", "range", 3.0, 4.0, 1),
    ]
    assert overlap(Trace.of(events, rows)) == Overlap(4.0, 1.0)
    on_gpu = [*events, Event("ncclDevKernel_AllReduce", "kernel", 10.0, 2.0, 2), Event("gemm", "kernel", 11.0, 3.0, 3)]
    found = overlap(Trace.of(on_gpu, [*rows, "GPU 0 stream 1", "GPU 0 stream 2"]))
    assert (found.communication_s, found.hidden_s) == (6.0, 1.0)
