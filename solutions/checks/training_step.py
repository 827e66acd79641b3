"""Checks of chapter 01's exercise: one training step.

The answer is compared with a step that is written out here, on a small model whose right updates are known.

Legend: B samples, C channels, H × W grid points.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.expect import expect_close


class _Lab:
    """A small model, its data and optimizer, made afresh from a seed, so that two of them start alike."""

    def __init__(self, seed: int, rate: float = 0.05, momentum: float = 0.9):
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Tanh(), nn.Conv2d(4, 2, 1))
        self.x, self.y = (torch.randn(4, 2, 3, 5, generator=generator) for _ in range(2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=momentum)

    def loss(self) -> float:
        """The mean squared error now."""
        return F.mse_loss(self.model(self.x), self.y).item()

    def run(self, step: Callable, n_steps: int = 1) -> torch.Tensor:
        """The weights after some updates."""
        for _ in range(n_steps):
            step(self.model, self.x, self.y, self.optimizer)
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def _with(loss: Callable) -> Callable:
    """A step with this loss, ``loss(model, x, y)``."""

    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model, x, y)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


_right = _with(lambda model, x, y: F.mse_loss(model(x), y))


def _accumulating(model, x, y, optimizer) -> None:
    """The step of somebody who forgets to clear the gradients."""
    F.mse_loss(model(x), y).backward()
    optimizer.step()


def _one_update(fn: Callable) -> None:
    """One update moves the weights as gradient descent says"""
    hint = "The weights did not move. Is there a backward(), then optimizer.step(), and no clearing between them?"
    summed = _with(lambda model, x, y: F.mse_loss(model(x), y, reduction="sum"))
    mistakes = [
        (_Lab(1).run(_right, 0), hint),
        (
            _Lab(1).run(_with(lambda model, x, y: F.mse_loss(model(y), x))),
            "The model gets the state now, x, and its forecast is compared with y.",
        ),
        (_Lab(1).run(summed), "Take the mean of the squared errors, not their sum."),
        (
            _Lab(1).run(_with(lambda model, x, y: F.mse_loss(model(x), y, reduction="sum") / len(x))),
            "The mean is over every squared error: samples, channels and points. Yours is over the samples only.",
        ),
        (
            _Lab(1).run(_with(lambda model, x, y: F.l1_loss(model(x), y))),
            "Square the errors: this is the mean of their absolute values.",
        ),
    ]
    expect_close(_Lab(1).run(fn), _Lab(1).run(_right), mistakes=mistakes, rtol=1e-3, atol=1e-6)


def _returns_loss(fn: Callable) -> None:
    """It returns the mean squared error before the update"""
    before, after, lab = _Lab(2), _Lab(2), _Lab(2)
    after.run(_right)
    got = fn(lab.model, lab.x, lab.y, lab.optimizer)
    n_values = lab.y.numel()
    mistakes = [
        (after.loss(), "That is the loss after the update. Return the one the gradient was taken of."),
        (before.loss() * n_values, "Take the mean of the squared errors, not their sum."),
        (before.loss() ** 0.5, "Return the mean squared error, without a root."),
    ]
    expect_close(got, before.loss(), mistakes=mistakes, rtol=1e-3)


class _Waits(TorchFunctionMode):
    """Notes what makes the CPU wait for a device: it reads a number or copies a tensor to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        home = name == "to" and "cpu" in map(str, [*args[1:], *(kwargs or {}).values()])
        if home or name in ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__", "__array__"):
            self.calls.append(name)
        return func(*args, **(kwargs or {}))


def _keeps_nothing(fn: Callable) -> None:
    """The returned loss is a tensor that keeps no graph alive and does not wait for the device"""
    lab, usual = _Lab(3), _Lab(3)
    with _Waits() as waits:
        loss = fn(lab.model, lab.x, lab.y, lab.optimizer)
    with _Waits() as known:
        _right(usual.model, usual.x, usual.y, usual.optimizer)
    if not isinstance(loss, torch.Tensor):
        hint = "Reading the loss as a Python number makes the CPU wait for a GPU in every step. Return the tensor."
        raise Wrong("a tensor", type(loss).__name__, hint)
    if loss.requires_grad:
        hint = "The loss still holds its whole graph, so a list of losses fills the memory. Detach it."
        raise Wrong("requires_grad=False", "requires_grad=True", hint)
    if len(waits.calls) > len(known.calls):
        hint = "That copies the loss to the CPU, which then waits for a GPU in every step. loss.detach() does not."
        raise Wrong("the loss where it is", f"a call of {waits.calls[-1]}", hint)


def _several_updates(fn: Callable) -> None:
    """Five updates in a row equal the reference"""
    hint = "Gradients add up from step to step. Clear them with optimizer.zero_grad()."
    mistakes = [(_Lab(4).run(_accumulating, 5), hint)]
    expect_close(_Lab(4).run(fn, 5), _Lab(4).run(_right, 5), mistakes=mistakes, rtol=1e-3, atol=1e-6)


def _stale_gradients(fn: Callable) -> None:
    """Gradients left over from before do not count"""
    expected, lab = _Lab(5).run(_right), _Lab(5)
    for parameter in lab.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    hint = "Something was in the gradients before your step. Clear them first, before backward()."
    expect_close(lab.run(fn), expected, hint=hint, rtol=1e-3, atol=1e-6)


_HINTS = (
    "Five lines: clear the gradients, compute the loss, differentiate, update, return.",
    "Whose gradients does optimizer.step() use, and which call fills them? What is in them from the step before?",
    "What does the returned loss still hold on to? Which method of a tensor lets go of that, and waits for nothing?",
)
_CODE = (
    "optimizer.zero_grad()",
    "loss = F.mse_loss(model(x), y)",
    "loss.backward()",
    "optimizer.step()",
    "return loss.detach()",
)
EXERCISE = Exercise(
    name="training_step",
    chapter="01",
    cases=(_one_update, _returns_loss, _keeps_nothing, _several_updates, _stale_gradients),
    hints=_HINTS,
    code=_CODE,
)
