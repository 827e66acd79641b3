"""The part of chapter 09's exercise that runs on each rank: training with the learner's gradient averager.

The input is the learner's class and a ``Scenario``. The output is a ``Report`` of the rank, with events in their order,
the gradients after each step and the weights at the end. A message of the wrong size is an error at once on the rank
that sends it, so that no rank waits for it.

Legend: N numbers of one message, B samples.

Source: Li et al. 2020, arXiv:2006.15704
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

LEARNING_RATE = 0.1
_BUCKETS = (
    ("spare.weight", "last.bias", "last.weight"),
    ("middle.bias", "middle.weight"),
    ("first.bias", "first.weight"),
)


class MessageError(Exception):
    """A message does not have the size of its bucket. The text is "SIZE INDEX", the message's size and its bucket."""


class Event(NamedTuple):
    """Something that happened on a rank.

    Attributes:
        kind: "gradient", "start" or "wait" of a message, "incomplete" for a message that starts while gradients of its
            bucket are missing, or "backward is over".
        number: The gradients so far, the bucket of the message, or the step.
    """

    kind: str
    number: int


@dataclass(frozen=True)
class Scenario:
    """How the ranks train.

    Attributes:
        n_steps: The number of updates.
        spare_on: The ranks that use the spare head of the network.
        reversed_on: The ranks on which gradients arrive in the reverse order. If there are such ranks, no rank has a
            backward pass, but each passes its gradients to the averager one by one.
    """

    n_steps: int = 1
    spare_on: tuple[int, ...] = (0, 1)
    reversed_on: tuple[int, ...] = ()


@dataclass
class Report:
    """What happened on one rank.

    Attributes:
        events: The events in their order.
        gradients: After each step, the gradient of each parameter, or None where there is none.
        weights: The weights at the end, as one flat tensor.
    """

    events: list[Event] = field(default_factory=list)
    gradients: list[list[Tensor | None]] = field(default_factory=list)
    weights: Tensor | None = None

    def numbers(self, kind: str) -> list[int]:
        """Return the numbers of all events of a kind."""
        return [event.number for event in self.events if event.kind == kind]


class Net(nn.Module):
    """A network with a layer that is used twice, a frozen layer and a spare head that only some ranks use."""

    def __init__(self) -> None:
        """Draw the same weights on all ranks."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.first = nn.Linear(3, 4)
            self.middle = nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4)
            self.last = nn.Linear(4, 2)
            self.spare = nn.Linear(4, 2, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, x_B3: Tensor, spare: bool = True) -> Tensor:
        """Return two numbers for each sample."""
        x_B4 = torch.tanh(self.first(x_B3))
        for layer in (self.middle, self.frozen, self.middle):
            x_B4 = torch.tanh(layer(x_B4))
        y_B2 = self.last(x_B4)
        if spare:
            y_B2 = y_B2 + self.spare(x_B4)
        return y_B2

    def buckets(self) -> list[list[nn.Parameter]]:
        """Return buckets of 18, 20 and 16 numbers. The last layer is in the first bucket."""
        parameters = dict(self.named_parameters())
        return [[parameters[name] for name in names] for names in _BUCKETS]

    def trained(self) -> list[nn.Parameter]:
        """Return all parameters that have gradients, in the order of the buckets."""
        return [parameter for bucket in self.buckets() for parameter in bucket]


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return input and target, which are different on each rank and in each step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)


def own_gradients(net: Net, step: int, rank: int, spare: bool = True) -> list[Tensor]:
    """Return the gradients of one rank's batch, with zeros for parameters that the rank does not use."""
    x, y = batch(step, rank)
    parameters = net.trained()
    gradients = torch.autograd.grad(F.mse_loss(net(x, spare), y), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


class _Handle:
    """The handle of a message. The sum arrives in ``wait``, and not before, so a missing ``wait`` has an effect."""

    def __init__(self, flat_N: Tensor, bucket: int, report: Report) -> None:
        self._flat_N = flat_N
        self._bucket = bucket
        self._report = report
        self._sum_N = flat_N.detach().clone()
        self._work = dist.all_reduce(self._sum_N, async_op=True)

    def wait(self) -> None:
        """Wait for the sum and write it into the message."""
        self._report.events.append(Event("wait", self._bucket))
        self._work.wait()
        with torch.no_grad():
            self._flat_N.copy_(self._sum_N)


class _Trainer:
    """Trains a network with the learner's averager, and records what the averager does."""

    def __init__(self, make_averager: Callable[..., Any], scenario: Scenario) -> None:
        self.scenario = scenario
        self.net = Net()
        self.report = Report()
        self._n_messages = 0
        self._with_gradient: set[nn.Parameter] = set()  # the parameters whose gradient of this step has arrived
        self._averager = make_averager(self.net.buckets(), self._start, dist.get_world_size())

    def _start(self, flat_N: Tensor) -> _Handle:
        """Start the all-reduce of the next message. The learner's averager calls this function."""
        buckets = self.net.buckets()
        index = self._n_messages % len(buckets)
        size = sum(parameter.numel() for parameter in buckets[index])
        if flat_N.dim() != 1 or flat_N.numel() != size:
            raise MessageError(f"{flat_N.numel()} {index}")
        if self._with_gradient and not set(buckets[index]) <= self._with_gradient:
            self.report.events.append(Event("incomplete", index))
        self.report.events.append(Event("start", index))
        self._n_messages += 1
        return _Handle(flat_N, index, self.report)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        """Pass a new gradient to the averager."""
        self.report.events.append(Event("gradient", len(self.report.numbers("gradient")) + 1))
        self._with_gradient.add(parameter)
        self._averager.on_gradient(parameter)

    def train(self) -> None:
        """Make all updates of the scenario."""
        if not self.scenario.reversed_on:
            for parameter in self.net.trained():
                parameter.register_post_accumulate_grad_hook(self._on_gradient)
        for step in range(self.scenario.n_steps):
            self.net.zero_grad()
            self._compute_gradients(step)
            self.report.events.append(Event("backward is over", step))
            self._with_gradient.clear()
            self._averager.finish()
            gradients = [None if p.grad is None else p.grad.detach().clone() for p in self.net.trained()]
            self.report.gradients.append(gradients)
            self._update()
        self.report.weights = torch.cat([parameter.detach().flatten() for parameter in self.net.trained()])

    def _compute_gradients(self, step: int) -> None:
        rank = dist.get_rank()
        if self.scenario.reversed_on:
            gradients = own_gradients(self.net, step, rank)
            arrivals = list(zip(self.net.trained(), gradients, strict=True))
            if rank in self.scenario.reversed_on:
                arrivals.reverse()
            for parameter, gradient in arrivals:
                parameter.grad = gradient
                self._on_gradient(parameter)
        else:
            x, y = batch(step, rank)
            F.mse_loss(self.net(x, rank in self.scenario.spare_on), y).backward()

    @torch.no_grad()
    def _update(self) -> None:
        for parameter in self.net.trained():
            if parameter.grad is not None:
                parameter.sub_(LEARNING_RATE * parameter.grad)


def train_on_rank(make_averager: Callable[..., Any], scenario: Scenario) -> Report:
    """Train with the learner's averager on this rank.

    Args:
        make_averager: The learner's class.
        scenario: How the ranks train.

    Returns:
        What happened on this rank.

    Raises:
        MessageError: The averager has started a message that has not the size of its bucket.
    """
    trainer = _Trainer(make_averager, scenario)
    trainer.train()
    return trainer.report
