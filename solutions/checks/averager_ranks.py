"""What chapter 09's exercise runs on real ranks: a small network, a learner's averager, and a record of what it does.

In: the learner's class. Out: from each rank the events in their order, the gradients after each step and the weights
at the end. A message of the wrong size is an error at once, on the rank that sends it: no rank is left waiting.

Legend: N numbers of one message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

RATE = 0.1


class MessageError(Exception):
    """A message that no bucket fits; its text is "SIZE NUMBER": how many numbers, and which message of the step."""


@dataclass
class Report:
    """What happened on one rank.

    Attributes:
        events: ("gradient", how many so far), ("start", bucket), ("wait", bucket), ("backward is over", step), and
            ("incomplete", bucket) for one that starts before that with some of its gradients still to come.
        gradients: after each step, one for each parameter; None where there is none.
        weights: at the end, in one row.
    """

    events: list[tuple[str, int]] = field(default_factory=list)
    gradients: list[list[Tensor | None]] = field(default_factory=list)
    weights: Tensor | None = None


class Net(nn.Module):
    """Three layers, the middle one tied to a second use, a frozen one, and a head that only some batches use."""

    def __init__(self) -> None:
        """The same weights everywhere."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.first, self.middle, self.frozen = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.last, self.spare = nn.Linear(4, 2), nn.Linear(4, 2, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, spare: bool = True) -> Tensor:
        """Two numbers for each sample."""
        x = torch.tanh(self.middle(torch.tanh(self.frozen(torch.tanh(self.middle(torch.tanh(self.first(x))))))))
        return self.last(x) + self.spare(x) if spare else self.last(x)

    def buckets(self) -> list[list[nn.Parameter]]:
        """Last layer first; 18, 20 and 16 numbers."""
        return [
            [self.spare.weight, self.last.bias, self.last.weight],
            [self.middle.bias, self.middle.weight],
            [self.first.bias, self.first.weight],
        ]

    def trained(self) -> list[nn.Parameter]:
        """All parameters that have gradients, in the order of the buckets."""
        return [parameter for bucket in self.buckets() for parameter in bucket]


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Other data on every rank and in every step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)


def own_gradients(net: Net, step: int, rank: int, spare: bool = True) -> list[Tensor]:
    """What one rank's backward pass gives; zeros for what it does not use."""
    x, y = batch(step, rank)
    found = torch.autograd.grad(F.mse_loss(net(x, spare), y), net.trained(), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(net.trained(), found, strict=True)]


class _Handle:
    """The sum arrives when it is waited for, and not before: who forgets to wait sees the old numbers."""

    def __init__(self, flat_N: Tensor, number: int, report: Report) -> None:
        self._flat_N, self._number, self._report, self._sum_N = flat_N, number, report, flat_N.detach().clone()
        self._work = dist.all_reduce(self._sum_N, async_op=True)

    def wait(self) -> None:
        self._report.events.append(("wait", self._number))
        self._work.wait()
        with torch.no_grad():
            self._flat_N.copy_(self._sum_N)


def train(
    make: Callable[..., Any], n_steps: int = 1, spare_on: Sequence[int] = (0, 1), backwards_on: Sequence[int] = ()
) -> Report:
    """Run the learner's averager on this rank.

    Args:
        make: the learner's class.
        n_steps: updates.
        spare_on: ranks that use the spare head.
        backwards_on: ranks on which gradients arrive in the reverse order, each called by hand.
    """
    net, rank, report = Net(), dist.get_rank(), Report()
    sizes = [sum(p.numel() for p in bucket) for bucket in net.buckets()]
    sent, came = 0, set()

    def start(flat_N: Tensor) -> _Handle:
        nonlocal sent
        if flat_N.dim() != 1 or flat_N.numel() != sizes[sent % len(sizes)]:
            raise MessageError(f"{flat_N.numel()} {sent % len(sizes)}")
        here = set(net.buckets()[sent % len(sizes)])
        if came and not here <= came:
            report.events.append(("incomplete", sent % len(sizes)))
        report.events.append(("start", sent % len(sizes)))
        sent += 1
        return _Handle(flat_N, (sent - 1) % len(sizes), report)

    averager = make(net.buckets(), start, dist.get_world_size())

    def on_gradient(parameter: nn.Parameter) -> None:
        report.events.append(("gradient", sum(kind == "gradient" for kind, _ in report.events) + 1))
        came.add(parameter)
        averager.on_gradient(parameter)

    if not backwards_on:
        for parameter in net.trained():
            parameter.register_post_accumulate_grad_hook(on_gradient)
    for step in range(n_steps):
        net.zero_grad()
        if backwards_on:
            _by_hand(net, step, rank, on_gradient, reverse=rank in backwards_on)
        else:
            x, y = batch(step, rank)
            F.mse_loss(net(x, rank in spare_on), y).backward()
        report.events.append(("backward is over", step))
        came.clear()
        averager.finish()
        report.gradients.append([None if p.grad is None else p.grad.detach().clone() for p in net.trained()])
        with torch.no_grad():
            for parameter in net.trained():
                parameter -= RATE * parameter.grad if parameter.grad is not None else 0
    report.weights = torch.cat([p.detach().flatten() for p in net.trained()])
    return report


def _by_hand(net: Net, step: int, rank: int, on_gradient: Callable[[nn.Parameter], None], *, reverse: bool) -> None:
    found = list(zip(net.trained(), own_gradients(net, step, rank), strict=True))
    for parameter, gradient in reversed(found) if reverse else found:
        parameter.grad = gradient
        on_gradient(parameter)
