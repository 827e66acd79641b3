"""LARS and LAMB equal the papers' equations in NumPy."""

import math

import numpy as np
import pytest
import pytorch_optimizer
import torch
from chapter_code import written
from torch import nn

from dltutorial.optim.lamb import LAMB
from dltutorial.optim.lars import LARS
from dltutorial.optim.layerwise import without_adaptation

STEPS, CLOSE = 100, 1e-6
OURS = {"LARS": LARS, "LAMB": LAMB}


def net(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def data(step, dtype=torch.float64):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 6, generator=generator, dtype=torch.float64).to(dtype)


def loss_of(model, step):
    x = data(step, next(model.parameters()).dtype)
    return (model(x) - x[:, :3].roll(1, 1)).square().mean()


def train(model, optimizer, steps=range(STEPS), rate=None):
    """Return the weights after each step, (steps S, weights N)."""
    rows = []
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        for group in optimizer.param_groups:
            group["lr"] = rate(step) if rate else group["lr"]
        optimizer.step()
        rows.append(row(model))
    return torch.stack(rows)


def row(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def norm(x):
    return math.sqrt(float((x * x).sum()))


class Equations:
    """The papers' algorithms for one layer, as they stand there, in float64."""

    def __init__(self, name, lr, **options):
        defaults = {"momentum": 0.9, "weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-6}
        self.o = defaults | options
        self.name, self.lr, self.t, self.m, self.v = name, lr, 0, 0.0, 0.0

    def __call__(self, w, g, adapt=True):
        """The new weights."""
        self.t += 1
        return (self.lamb if self.name == "LAMB" else self.lars)(w, g, adapt)

    def lars(self, w, g, adapt):
        o, decay = self.o, self.o["weight_decay"] if adapt else 0.0
        rate = self.lr
        if adapt:
            local = o["trust_coefficient"] * norm(w) / (norm(g) + decay * norm(w))
            rate = self.lr * local
        move = rate * (g + decay * w)
        self.v = o["momentum"] * self.v + move
        return w - self.v

    def lamb(self, w, g, adapt):
        (b1, b2), decay = self.o["betas"], self.o["weight_decay"] if adapt else 0.0
        self.m, self.v = b1 * self.m + (1 - b1) * g, b2 * self.v + (1 - b2) * g * g
        m, v = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        update = m / (np.sqrt(v) + self.o["eps"]) + decay * w
        ratio = norm(w) / norm(update) if adapt else 1.0
        return w - self.lr * ratio * update


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LARS", {"lr": 2.0, "weight_decay": 0.1, "trust_coefficient": 0.01}),
        ("LAMB", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    ],
)
def test_every_step_is_that_of_the_papers_equations(name, options):
    """The learning rate follows a schedule, so it must stand at the same place as in the paper."""
    model, other = net(), net()
    lr, rest = options["lr"], {key: value for key, value in options.items() if key != "lr"}
    optimizer = OURS[name](without_adaptation(model), **options)
    layers = [Equations(name, lr, **rest) for _ in other.parameters()]
    for step in range(STEPS):
        rate = lr * 0.97**step
        ours = train(model, optimizer, [step], lambda _, rate=rate: rate)
        loss_of(other, step).backward()
        for p, equations in zip(other.parameters(), layers, strict=True):
            equations.lr = rate
            p.data = torch.from_numpy(np.asarray(equations(p.detach().numpy(), p.grad.numpy(), p.ndim > 1)))
            p.grad = None
        assert torch.allclose(ours[0], row(other), rtol=0, atol=1e-10), step
    assert (row(other) - row(net())).abs().max() > 1e-3, "the weights hardly moved"


@pytest.mark.parametrize("name", ["NovoGrad", "Shampoo"])
def test_the_optimizers_of_chapter_14_equal_those_of_pytorch_optimizer(name):
    """Shampoo is compared in its first step, because the package has another kind of momentum."""
    own = written("further/14", "novograd", "inverse_root", "shampoo")
    ours = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = nn.Parameter(ours.clone())
    more = {"weight_decay": 0.1} if name == "NovoGrad" else {"matrix_eps": 1e-4}
    optimizer = getattr(pytorch_optimizer, name)([theirs], 0.003, **more)
    state = dict.fromkeys(("t", "square", "m"), torch.zeros((), dtype=torch.float64)) if name == "NovoGrad" else {}
    for step in range(STEPS if name == "NovoGrad" else 1):
        gradient = data(step)[:6, :4]
        theirs.grad = gradient.clone()  # the package changes it
        optimizer.step()
        if name == "NovoGrad":
            ours, state = own["novograd"](ours, gradient, state, 0.003, 0.1)
        else:
            own["shampoo"](ours, gradient, state, 0.003)
        assert (ours - theirs).abs().max() < CLOSE


@pytest.mark.parametrize("kind", OURS.values(), ids=OURS)
def test_half_the_steps_saved_and_resumed_are_all_steps_to_the_bit(kind, tmp_path):
    options = {"lr": 0.05, "weight_decay": 0.01}
    whole = net(torch.float32)
    expected = train(whole, kind(without_adaptation(whole), **options))[-1]
    first = net(torch.float32)
    optimizer = kind(without_adaptation(first), **options)
    train(first, optimizer, range(STEPS // 2))
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "half.pt")
    saved = torch.load(tmp_path / "half.pt", weights_only=True)
    second = net(torch.float32, seed=1)
    second.load_state_dict(saved["model"])
    again = kind(without_adaptation(second), **options)
    again.load_state_dict(saved["optimizer"])
    assert torch.equal(train(second, again, range(STEPS // 2, STEPS))[-1], expected)


@pytest.mark.parametrize("kind", OURS.values(), ids=OURS)
def test_a_layer_of_zeros_changes_and_a_zero_gradient_leaves_all_weights_finite(kind):
    zeros, still = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.ones(3, 3))
    optimizer = kind([zeros, still], lr=0.1)
    for _ in range(3):
        zeros.grad, still.grad = torch.ones(3, 3), torch.zeros(3, 3)
        optimizer.step()
    assert zeros.isfinite().all()
    assert (zeros < -0.05).all(), "a ratio of 0 would have kept it at zero"
    assert torch.equal(still, torch.ones(3, 3))


def test_biases_and_norms_are_a_group_without_adaptation_and_frozen_weights_are_in_no_group():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    model[2].weight.requires_grad_(False)
    adapted, left = without_adaptation(model)
    assert [tuple(p.shape) for p in adapted["params"]] == [(4, 3, 3, 3)]
    assert len(left["params"]) == 4
    assert (left["adapt"], left["weight_decay"]) == (False, 0.0)
