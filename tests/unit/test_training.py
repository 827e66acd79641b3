import itertools
import math

import pytest
import torch
from torch import nn

from dltutorial.engine.forecasting import anomaly_correlation, rmse, row_weights, squared_error
from dltutorial.engine.loop import loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.step import learning_rate, make_optimizer, train_step
from dltutorial.engine.task import Task

RECIPE = Recipe(steps=40, warmup_steps=4, log_every=10, eval_every=20, learning_rate=1e-2)


def line_data(seed=0):
    """y = 3 x, for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(8, 1, 2, 4, generator=generator)
        yield x, 3 * x


def linear():
    torch.manual_seed(0)
    return nn.Conv2d(1, 1, 1)


def task(model, batches=None, metrics=None):
    return Task(model, lambda skip: batches or line_data(), squared_error, metrics)


def test_schedule_rises_then_falls_along_half_a_cosine():
    factors = [learning_rate(step, RECIPE) / RECIPE.learning_rate for step in range(RECIPE.steps)]
    assert factors[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert factors[4] == pytest.approx(1.0)
    assert factors[22] == pytest.approx(RECIPE.final_rate_ratio + (1 - RECIPE.final_rate_ratio) / 2)
    assert all(a >= b for a, b in itertools.pairwise(factors[4:]))
    assert learning_rate(RECIPE.steps, RECIPE) / RECIPE.learning_rate == pytest.approx(RECIPE.final_rate_ratio)


def test_step_makes_the_update_of_plain_gradient_descent():
    model, (x, y) = linear(), next(line_data())
    before = model.weight.item()
    gradient = (2 * (model(x) - y) * x).mean().item()
    loss = train_step(model, (x, y), squared_error, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.weight.item() == pytest.approx(before - 0.1 * gradient, rel=1e-5)
    assert not loss.requires_grad


def test_step_clips_the_gradient_norm():
    model, (x, y) = linear(), next(line_data())
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    train_step(model, (x, y), squared_error, torch.optim.SGD(model.parameters(), lr=1.0), clip_norm=0.01)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_loop_yields_records_and_learns():
    model = linear()
    seen = list(loop(task(model, metrics=lambda m: {"valid/x": m.weight.item()}), RECIPE))
    assert [record.step for record in seen] == [10, 20, 30, 40]
    assert [bool(record.scores) for record in seen] == [False, True, False, True]
    assert seen[-1].loss < seen[0].loss
    assert seen[-1].scores["valid/x"] == model.weight.item()


def test_loop_gives_the_same_losses_again():
    def losses():
        return [record.loss for record in loop(task(linear()), RECIPE)]

    assert losses() == losses()


def test_weight_decay_spares_vectors():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    decayed, spared = make_optimizer(model, RECIPE).param_groups
    assert [p.ndim for p in decayed["params"]] == [2]
    assert {p.ndim for p in spared["params"]} == {1}
    assert spared["weight_decay"] == 0


def test_rmse_weighs_rows_by_area():
    truth = torch.zeros(1, 1, 181, 2)
    pole, equator = truth.clone(), truth.clone()
    pole[..., 0, :], equator[..., 90, :] = 1.0, 1.0
    weights = row_weights(181, "sphere")
    assert weights.mean().item() == pytest.approx(1.0)
    assert rmse(pole, truth, weights).item() == pytest.approx(0, abs=1e-3)
    expected = math.sqrt(weights[90].item() / 181)
    assert rmse(equator, truth, weights).item() == pytest.approx(expected, rel=1e-5)
    flat = row_weights(181, "beta-plane")
    assert rmse(pole, truth, flat).item() == rmse(equator, truth, flat).item()


def test_anomaly_correlation_has_its_known_values():
    torch.manual_seed(0)
    climate, truth = torch.randn(1, 2, 8, 16), torch.randn(3, 2, 8, 16)
    weights = row_weights(8, "beta-plane")
    mirrored = 2 * climate - truth
    assert torch.allclose(anomaly_correlation(truth, truth, climate, weights), torch.ones(3, 2))
    assert torch.allclose(anomaly_correlation(mirrored, truth, climate, weights), -torch.ones(3, 2))
    assert torch.equal(anomaly_correlation(climate, truth, climate, weights), torch.zeros(3, 2))
