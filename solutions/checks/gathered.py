"""Checks of chapter 17's exercise, second part: a layer whose weight is whole only while it works.

Two real ranks with other samples each, and half of the rows. What is right is one process with the whole weight.
"""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.dealt import Wire, ranks
from dltutorial.course.checks.expect import expect_close

PATIENCE_S = 20.0  # for ranks that share busy cores
_ROWS, _WIDTH = 3, 5


def _given(rank: int, n: int, leading: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples, whole weight, slope of y."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randn(n * _ROWS, _WIDTH, generator=generator)
    own = torch.Generator().manual_seed(10 + rank)
    x = torch.randn(*leading, _WIDTH, generator=own)
    return x, whole, torch.randn(*leading, n * _ROWS, generator=own)


def _there(shapes: set[torch.Size]) -> set[torch.Size]:
    """Which of these shapes some tensor has. A thread of gloo's may hold what it has sent for a moment longer."""
    until_s = time.monotonic() + 1
    while found := shapes & {one.shape for one in gc.get_objects() if isinstance(one, torch.Tensor)}:
        if time.monotonic() > until_s:
            break
        time.sleep(0.02)
    return found


def _on_rank(fn: Callable, leading: tuple[int, ...], times: int, back: bool) -> dict[str, Any]:
    rank, n, saved = dist.get_rank(), dist.get_world_size(), []
    x, whole, slope = _given(rank, n, leading)
    rows, shape = whole.chunk(n)[rank].clone().requires_grad_(), whole.shape
    del whole
    x.requires_grad_()
    for _ in range(times):
        keeps = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t)
        with Wire() as watch, keeps:
            y = fn.apply(x, rows)
        if not back:
            return {"y": y.detach() if isinstance(y, torch.Tensor) else y}
        kept = {shape, shape[::-1]} & set(saved) or _there({shape, shape[::-1]})
        with Wire() as after:
            (y * slope).sum().backward()
    return {
        "y": y.detach(),
        "x": x.grad,
        "rows": rows.grad,
        "kept": kept,
        "forward": [kind for kind, _ in watch.sent],
        "backward": [kind for kind, _ in after.sent],
    }


def _slopes(n: int, leading: tuple[int, ...]) -> list[torch.Tensor]:
    """Each rank's own gradient of the whole weight."""
    found = []
    for rank in range(n):
        x, _, slope = _given(rank, n, leading)
        found.append(slope.flatten(0, -2).T @ x.flatten(0, -2))
    return found


def _runs(
    fn: Callable, n: int = 2, leading: tuple[int, ...] = (4,), times: int = 1, back: bool = True
) -> list[dict[str, Any]]:
    return ranks(_on_rank, n, PATIENCE_S, fn, leading, times, back)


def _values(fn: Callable) -> None:
    """The forward pass gives x Wᵀ, of the whole W"""
    for rank, found in enumerate(_runs(fn, back=False)):
        x, whole, _ = _given(rank, 2, (4,))
        expect_close(found["y"], x @ whole.T, "y is x @ W.T, of all ranks' rows.", rtol=1e-3, atol=1e-5)


def _gradients(fn: Callable, n: int = 2, leading: tuple[int, ...] = (4,), times: int = 1) -> None:
    """Gradients of x are this rank's own; those of the rows are the mean over the ranks"""
    own = _slopes(n, leading)
    for rank, found in enumerate(_runs(fn, n, leading, times)):
        _, whole, slope = _given(rank, n, leading)
        for name in ("x", "rows"):
            if found[name] is None:
                raise Wrong(f"a gradient of {name}", None, "backward returns one gradient for x and one for the rows.")
        hint = "The slope by x is the slope by y, times the whole W."
        expect_close(found["x"], times * (slope @ whole), hint, rtol=1e-3, atol=1e-5)
        total = times * sum(own).chunk(n)[rank]
        mistakes = [
            (total, "This is the sum over the ranks: divide by their number."),
            (times * own[rank].chunk(n)[rank], "These are this rank's samples alone: all ranks' gradients count."),
            (times * own[rank].chunk(n)[rank] / n, "These are this rank's samples alone: add all ranks'."),
        ]
        hint = "Of the slope by y, transposed, times x: the part of this rank's rows, over all ranks."
        expect_close(found["rows"], total / n, hint, mistakes, rtol=1e-3, atol=1e-5)


def _leading(fn: Callable) -> None:
    """x with three dimensions, and with four"""
    _gradients(fn, leading=(2, 3))
    _gradients(fn, leading=(2, 1, 3))


def _three_ranks(fn: Callable) -> None:
    """Three ranks"""
    _gradients(fn, 3)


def _adds(fn: Callable) -> None:
    """Called twice, gradients add up"""
    _gradients(fn, times=2)


def _messages(fn: Callable) -> None:
    """One gather forward; one gather and one reduce-scatter backward"""
    for found in _runs(fn):
        if sum("gather" in kind for kind in found["forward"]) != 1 or len(found["forward"]) != 1:
            raise Wrong("one gather in the forward pass", found["forward"], "Gather once, and send nothing else.")
        back = found["backward"]
        if not any("gather" in kind for kind in back):
            raise Wrong("a gather in the backward pass", back, "The whole W was kept. Keep the rows, and gather again.")
        if found["kept"]:
            hint = "A tensor of W's shape is there between the passes: keep nothing of W but the rows."
            raise Wrong("the rows alone", "the whole W is kept", hint)
        if any("allreduce" in kind for kind in back):
            hint = "An all-reduce tells each rank the mean of all rows, of which it needs its own: reduce_scatter."
            raise Wrong("a reduce-scatter in the backward pass", back, hint)
        if len(back) != 2:
            raise Wrong("two messages in the backward pass", back, "One gather, one reduce-scatter.")


EXERCISE = Exercise(
    name="gathered",
    chapter="17",
    cases=(_values, _gradients, _leading, _three_ranks, _adds, _messages),
    hints=(
        "What does the backward pass need, and which of it is too large to keep?",
        "Every rank makes a gradient of all rows, from its own samples. Who needs which part of whose?",
        "all_gather in both passes, reduce_scatter in the backward pass, then the mean.",
    ),
    deadline_s=180.0,
)
