"""Profiling on a CUDA device: device time, idle share, waits for the device, and the bottlenecks found in them."""

import pytest
import torch
from torch import nn

from dltutorial.profile import (
    bottlenecks,
    trace,
    trace_summary,
    work,
)
from dltutorial.profile.evidence import Evidence
from dltutorial.profile.trace_breakdown import StepBreakdown

pytestmark = pytest.mark.gpu


def layers(width, depth):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)]).to("cuda")


def stepping(model, every=0):
    """A forward and a backward pass; ``every`` so many layers a value is read."""

    def step(batch):
        x = batch
        for number, layer in enumerate(model, 1):
            x = layer(x)
            if every and number % every == 0:
                x.mean().item()
        x.square().mean().backward()
        model.zero_grad()

    return step


def traced(step, batch):
    return trace.take(lambda: step(batch), steps=4)


def test_a_trace_holds_kernels_their_idle_share_and_ranges_of_the_host():
    model, batch = layers(1024, 4), torch.randn(512, 1024, device="cuda")
    taken = traced(stepping(model), batch)
    assert any(event.category == "kernel" for event in taken.events)
    assert 0 <= trace_summary.device_idle_share(taken) < 1
    breakdown = StepBreakdown.of(taken)
    assert breakdown.device_s > 0
    assert breakdown.n_calls > 8
    assert breakdown.product_s > 0


def test_many_small_layers_are_launch_bound_and_large_products_compute_bound():
    small = traced(stepping(layers(16, 300)), torch.randn(8, 16, device="cuda"))
    assert bottlenecks.investigate(Evidence(trace=small)).bottleneck.name == bottlenecks.LAUNCHES
    large = traced(stepping(layers(8192, 4)), torch.randn(8192, 8192, device="cuda"))
    assert bottlenecks.investigate(Evidence(trace=large)).bottleneck.name == bottlenecks.COMPUTE


def test_reading_a_value_in_every_layer_shows_as_waits_for_the_device():
    model, batch = layers(2048, 40), torch.randn(512, 2048, device="cuda")
    assert StepBreakdown.of(traced(stepping(model, every=1), batch)).n_synchronise >= 40
    assert StepBreakdown.of(traced(stepping(model), batch)).n_synchronise < 5


def test_work_is_counted_as_on_a_cpu():
    on_cpu, x = nn.Linear(64, 32, bias=False), torch.ones(8, 64)
    count = work.count(lambda: on_cpu(x)).flop
    on_gpu = on_cpu.to("cuda")
    assert work.count(lambda: on_gpu(x.to("cuda"))).flop == count
