"""A pipeline by hand: each rank runs its order of acts, and sends what it finds to the ranks before and behind it.

In: this rank's order (:mod:`dltutorial.parallel.schedules`), its stages, the parts of a batch. Out: gradients in the
stages' weights, the losses, when each act was done, and how many parts were held at once.

Every message has its act as a tag, so two that pass between the same ranks are never mistaken for each other. Gloo
knows tags; NCCL does not, and torch's own schedules put its messages into one order instead.

A linear layer that is :func:`postponed` splits its backward pass: the slope of its input at once (B), that of its
weights when the order says W. Until then what it needs stays.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.errors import CourseError
from dltutorial.parallel.schedules import Act, Span

Group = dist.ProcessGroup | None


class _Late(torch.autograd.Function):
    """A linear layer; backward notes what the weights' gradient needs, and computes the input's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, todo: list) -> Tensor:
        """As ever."""
        ctx.save_for_backward(x, weight, bias)
        ctx.todo = todo
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple:  # type: ignore[override]
        """The input's slope; the weights' is noted."""
        x, weight, bias = ctx.saved_tensors
        ctx.todo.append((x, slope, weight, bias))
        return slope @ weight if ctx.needs_input_grad[0] else None, None, None, None


def postponed(stage: Any) -> Any:
    """The same stage; its linear layers compute their weights' gradients when the order says W."""
    stage.todo = []
    for layer in stage.modules():
        if type(layer) is nn.Linear:  # no bound method: a copy of the stage is to have its own weights and todo
            layer.forward = functools.partial(_late, layer, stage.todo)  # type: ignore[method-assign]
    return stage


def _late(layer: nn.Linear, todo: list, x: Tensor) -> Tensor:
    return _Late.apply(x, layer.weight, layer.bias, todo)


def _weights(todo: list) -> None:
    for x, slope, weight, bias in todo:
        x, slope = x.flatten(0, -2), slope.flatten(0, -2)
        for parameter, gradient in (weight, slope.T @ x), (bias, slope.sum(0)):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


class Run(NamedTuple):
    """What one rank did in a step: losses (of the last stage), spans, the most parts held at once."""

    losses: list[float]
    spans: list[Span]
    held: int


class Worker:
    """One rank in one step. Its arguments are those of :func:`run`."""

    def __init__(self, stages: Mapping[int, nn.Module], n_stages: int, shape: Sequence[int], apart: bool, group: Group):
        self.stages, self.n_stages, self.shape, self.apart = stages, n_stages, shape, apart
        self.group, self.me = group, dist.get_rank(group)
        self.ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.here: dict[Act, Tensor] = {}  # from a stage of this rank to the next one, on this rank, too
        self.sent: list[tuple] = []  # with their tensors, which must live until they are gone
        self.alive: dict[tuple[int, int], Any] = {}  # what the backward pass of a part needs

    def give(self, tensor: Tensor, act: Act) -> None:
        """To the rank that will do this act; nobody waits here."""
        other, tag = act.stage % len(self.ranks), 2 * (act.stage * 2**12 + act.part) + (act.kind == "B")
        if other == self.me:
            self.here[act] = tensor
        else:
            self.sent.append((dist.isend(tensor, self.ranks[other], self.group, tag), tensor))

    def take(self, act: Act) -> Tensor | None:
        """What this act needs of the stage before or behind; it waits for it. The batch's ends need nothing."""
        source = act.stage + {"F": -1, "B": 1, "W": self.n_stages}[act.kind]
        if not 0 <= source < self.n_stages:
            return None
        if source % len(self.ranks) == self.me:
            return self.here.pop(act)
        tag = 2 * (act.stage * 2**12 + act.part) + (act.kind == "B")
        dist.recv(tensor := torch.empty(self.shape), self.ranks[source % len(self.ranks)], self.group, tag)
        return tensor

    def do(self, act: Act, got: Tensor | None, x: Tensor, loss: Callable[[Tensor, int], Tensor]) -> Tensor | None:
        """The work itself; returns what the next stage, or the one before, waits for."""
        kind, part, stage = act
        if kind == "F":
            x = x if got is None else got.requires_grad_()
            y = self.stages[stage](x)
            if stage == self.n_stages - 1:
                y = loss(y, part)
            self.alive[stage, part] = x, y
            return y.detach()
        if kind == "W":
            _weights(self.alive.pop((stage, part)))
            return None
        x, y = self.alive.pop((stage, part))
        y.backward(got)
        todo = getattr(self.stages[stage], "todo", [])
        if self.apart:
            self.alive[stage, part] = list(todo)
        else:
            _weights(todo)
        todo.clear()
        return x.grad


def run(
    order: Sequence[Act], stages: Mapping[int, nn.Module], n_stages: int, shape: Sequence[int],
    parts: Sequence[Tensor], loss: Callable[[Tensor, int], Tensor], at_least_s: Mapping[str, float] | None = None,
    group: Group = None,
) -> Run:  # fmt: skip
    """One step on this rank; all ranks call it, each with its order.

    Args:
        order: this rank's acts.
        stages: this rank's, by number; stage s lies on rank s mod p.
        n_stages: of all ranks.
        shape: of what goes from a stage to the next, float32.
        parts: of the batch, for stage 0.
        loss: of the last stage's output and the number of the part.
        at_least_s: how long an act of a kind lasts at least: a device that is busy while its host only waits.
        group: the ranks of this pipeline; None: all.
    """
    apart = any(act.kind == "W" for act in order)
    if apart and not all(hasattr(stage, "todo") for stage in stages.values()):
        raise CourseError("an order with W needs stages whose weights can wait; make them with postponed(stage)")
    worker, done, held = Worker(stages, n_stages, shape, apart, group), Run([], [], 0), 0
    for act in order:
        got = worker.take(act)
        start_s = time.monotonic()  # from here on it works
        found = worker.do(act, got, parts[act.part], loss)
        time.sleep(max(0.0, start_s + (at_least_s or {}).get(act.kind, 0.0) - time.monotonic()))
        done.spans.append(Span(act, start_s, time.monotonic()))
        held = max(held, len(worker.alive))
        to = act.stage + (1 if act.kind == "F" else -1)
        if act.kind == "F" and to == n_stages:
            done.losses.append(found.item())  # type: ignore[union-attr]
        elif found is not None and to >= 0:
            worker.give(found.contiguous(), act._replace(stage=to))
    for message, _ in worker.sent:
        message.wait()
    return done._replace(held=held)
