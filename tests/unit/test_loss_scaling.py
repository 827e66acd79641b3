import math

import pytest
import torch

from dltutorial.train.loss_scaling import LossScaler, unscale

OVERFLOW, UNKNOWN = math.inf, math.nan
SEQUENCES = {
    "all good": [1.0] * 9,
    "overflow at once": [OVERFLOW, 1.0, 1.0, 1.0, 1.0],
    "overflow just before growth": [1.0, 1.0, OVERFLOW, 1.0, 1.0, 1.0],
    "overflow after growth": [1.0, 1.0, 1.0, OVERFLOW, 1.0, 1.0, 1.0],
    "NaN counts as overflow": [1.0, UNKNOWN, 1.0, 1.0, 1.0, -OVERFLOW],
    "one after another": [OVERFLOW, OVERFLOW, UNKNOWN, 1.0, 1.0, 1.0, 1.0],
}
SETTINGS = {"usual": (8.0, 2.0, 0.5), "odd factors": (3.0, 1.5, 0.25), "near the largest float": (2.0**127, 2.0, 0.5)}


def lab():
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(2, 2))]
    unused = torch.nn.Parameter(torch.ones(1))  # never has a gradient
    return weights, torch.optim.AdamW([*weights, unused], lr=0.1)


def loss_of(weights, factor):
    """Its gradient is planted: ordinary, or not finite in one element of the last tensor."""
    return weights[0].sum() + (weights[1] * torch.tensor([[1.0, 1.0], [1.0, factor]])).sum()


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_every_decision_is_that_of_torch(sequence, setting):
    scale, growth, backoff = setting
    ours = LossScaler(scale, growth, backoff, interval=3)
    torchs = torch.amp.GradScaler("cpu", scale, growth, backoff, growth_interval=3)
    (our_weights, our_optimizer), (weights, optimizer) = lab(), lab()
    for factor in sequence:
        for o in (our_optimizer, optimizer):
            o.zero_grad()
        before = [w.detach().clone() for w in our_weights]
        shrunk = 1 / scale if scale > 1e30 else 1.0  # the planted gradients themselves must not overflow
        ours.backward(loss_of(our_weights, factor) * shrunk)
        moved = ours.step(our_optimizer)
        torchs.scale(loss_of(weights, factor) * shrunk).backward()
        torchs.step(optimizer)
        torchs.update()
        assert moved == math.isfinite(factor)
        assert moved != all(torch.equal(a, b) for a, b in zip(before, our_weights, strict=True))
        assert ours.scale == torchs.get_scale()
        assert ours.good_steps == torchs._get_growth_tracker()
        assert all(torch.equal(a, b) for a, b in zip(our_weights, weights, strict=True))


def test_unscaling_gives_back_the_very_gradients():
    w = torch.nn.Parameter(torch.randn(100, generator=torch.Generator().manual_seed(0)))
    (w**2).sum().backward()
    expected = w.grad.clone()
    w.grad = None
    LossScaler(2.0**16).backward((w**2).sum())
    assert unscale([w], 2.0**16)
    assert torch.equal(w.grad, expected)


def test_an_overflow_of_fp16_is_found_by_itself():
    """No planted inf: the scale is too large for fp16, shrinks until it fits, and then the weights move."""
    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 8), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, start = LossScaler(2.0**24), model.weight.detach().clone()
    moved = []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = torch.nn.functional.mse_loss(model(x), 2 * x)
        scaler.backward(loss)
        moved.append(scaler.step(optimizer))
    first = moved.index(True)
    assert first > 0
    assert all(moved[first:])
    assert scaler.scale == 2.0 ** (24 - first)
    assert torch.isfinite(model.weight).all()
    assert not torch.equal(model.weight, start)
