"""The updates and evaluations of an ensemble, and who is still in it.

In: the layers of R replicas in a ``Rule``, data on one device, a ``Plan``. Out: curves and weights of all replicas. A
replica leaves when its loss is not finite, or when it has reached what it was trained for; the tensors shrink, so
that those that are left cost less.

Legend: R replicas, those that still train; E evaluations, B images in a batch, N images, F features, C classes.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dltutorial import machine
from dltutorial.convergence import networks, rules
from dltutorial.convergence.order import Order

_ROWS_AT_ONCE = 8192  # of the images of all replicas: 8 MB with 256 features, what a CPU's cache can hold
_ROWS_FOR_THREADS = 2048  # below, a second thread costs more than it brings


@dataclass(frozen=True)
class Plan:
    """What to do when.

    Attributes:
        batch_size: of a step, from 0.
        evaluations: after so many updates, ascending; the last ends the run.
        until: a replica leaves with this validation accuracy; None: none does.
        stop: see ``ensemble.train``.
        keep_steps: keep weights after so many updates.
        keep_at_loss: keep weights when the training loss is this; None: never.
    """

    batch_size: Callable[[int], int]
    evaluations: tuple[int, ...]
    until: float | None = None
    stop: Callable[[int, Tensor], bool] | None = None
    keep_steps: tuple[int, ...] = ()
    keep_at_loss: float | None = None


@dataclass(frozen=True)
class Data:
    """Images (N, F) and labels (N,) on the device that computes."""

    x_train: Tensor
    y_train: Tensor
    x_valid: Tensor
    y_valid: Tensor


@contextlib.contextmanager
def threads(rows: int, device: str) -> Iterator[None]:
    """Compute small products with one thread: two would wait for each other most of the time."""
    before = torch.get_num_threads()
    small = device == "cpu" and rows < _ROWS_FOR_THREADS
    machine.use_cores(1 if small else before)
    try:
        yield
    finally:
        machine.use_cores(before)


class Program:
    """R replicas in training."""

    def __init__(
        self,
        plan: Plan,
        rule: rules.Rule,
        data: Data,
        order: Order,
        rates: Sequence[float],
        schedules: Sequence[Callable[[int], float]],
    ) -> None:
        self.plan, self.rule, self.data, self.order = plan, rule, data, order
        self.rates, self.schedules = rates, schedules
        self.device, self.n = data.x_train.device, len(rates)
        self.there = torch.arange(self.n)  # numbers of those that still train
        self.ended = self._copy()  # weights of those that left
        self.at_loss, self.at_loss_step_R = self._copy(), torch.full((self.n,), torch.nan)
        self.reached_R = torch.full((self.n,), torch.nan)
        self.diverged_at_R = torch.full((self.n,), -1)
        self.kept = {0: self._copy()} if 0 in plan.keep_steps else {}

    def run(self) -> dict[str, Any]:
        """All updates and evaluations; the fields of a ``Run``, by name."""
        steps, losses, scores = [0], [], []
        for end in self.plan.evaluations:
            losses.append(self._spread(self._train(steps[-1], end)))
            scores.append(self._spread(networks.accuracies(self.rule.layers, self.data.x_valid, self.data.y_valid)))
            steps.append(end)
            self._note(end, losses[-1], scores[-1])
            if len(self.there) == 0 or (self.plan.stop is not None and self.plan.stop(end, self.reached_R.clone())):
                break
        self._settle(self.ended, self.there, torch.arange(len(self.there)))
        return {
            "steps": torch.tensor(steps[1:]),
            "train_loss_RE": torch.stack(losses, 1),
            "valid_accuracy_RE": torch.stack(scores, 1),
            "diverged_R": self.diverged_at_R >= 0,
            "diverged_at_R": self.diverged_at_R,
            "layers": tuple(self.ended),
            "kept_layers": self.kept,
            "at_loss_layers": tuple(self.at_loss),
            "at_loss_step_R": self.at_loss_step_R,
        }

    def _train(self, start: int, end: int) -> Tensor:
        """Updates from ``start`` to ``end``; the mean loss of those that still train afterwards."""
        rates_SR11 = self._rates(start, end)
        total_R = torch.zeros(len(self.there), device=self.device)
        for step in range(start, end):
            loss_R, gradients = self._gradients(self.order.next(self.plan.batch_size(step)).to(self.device))
            good_R = loss_R.isfinite()
            if not good_R.all():
                self.diverged_at_R[self.there[~good_R.cpu()]] = step
                gradients = [gradient[good_R] for gradient in gradients]
                total_R, loss_R, rates_SR11 = total_R[good_R], loss_R[good_R], rates_SR11[:, good_R]
                self._leave(~good_R)
            if len(self.there) == 0:
                break
            with torch.no_grad():
                self.rule(gradients, rates_SR11[step - start])
            total_R += loss_R
        return total_R / (end - start)

    def _gradients(self, chosen_RB: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Loss (R,) of a batch and its gradients; on a CPU in parts that fit into its cache."""
        R, B = chosen_RB.shape
        at_once = B if self.device.type != "cpu" else max(1, _ROWS_AT_ONCE // R)
        total_R, total = torch.zeros(R, device=self.device), None
        for part_RB in chosen_RB.split(at_once, 1):
            x_RBF = self.data.x_train.index_select(0, part_RB.reshape(-1)).view(*part_RB.shape, -1)
            logits_RBC = networks.logits(self.rule.layers, x_RBF)
            loss_R = networks.losses(logits_RBC, self.data.y_train[part_RB]) * (part_RB.shape[1] / B)
            gradients = torch.autograd.grad(loss_R.sum(), self.rule.layers)
            total_R += loss_R.detach()
            total = list(gradients) if total is None else [a.add_(b) for a, b in zip(total, gradients, strict=True)]
        return total_R, total

    def _rates(self, start: int, end: int) -> Tensor:
        """The learning rates of those that still train, (steps, R, 1, 1)."""
        there = self.there.tolist()
        rates = [[self.rates[r] * self.schedules[r](step) for r in there] for step in range(start, end)]
        return torch.tensor(rates, dtype=torch.float32, device=self.device)[..., None, None]

    def _note(self, step: int, loss_R: Tensor, score_R: Tensor) -> None:
        """Keep what was asked for after so many updates, and let those leave that are where they should be."""
        if step in self.plan.keep_steps:
            self.kept[step] = self._copy()
        if self.plan.keep_at_loss is not None:
            new = (loss_R <= self.plan.keep_at_loss) & self.at_loss_step_R.isnan()
            places = new[self.there].nonzero()[:, 0]
            self._settle(self.at_loss, self.there[places], places)
            self.at_loss_step_R[new] = float(step)
        if self.plan.until is not None:
            there_R = score_R >= self.plan.until
            self.reached_R[there_R] = float(step)
            self._leave(there_R[self.there])

    def _leave(self, leaving: Tensor) -> None:
        """Some of those that still train do so no more."""
        leaving = leaving.cpu()
        if not leaving.any():
            return
        self._settle(self.ended, self.there[leaving], leaving.nonzero()[:, 0])
        stay = (~leaving).nonzero()[:, 0]
        self.there = self.there[stay]
        self.order.keep(stay)
        on_device = stay.to(self.device)
        self.rule.keep([layer.detach()[on_device].requires_grad_() for layer in self.rule.layers], on_device)

    def _settle(self, into: Sequence[Tensor], numbers: Tensor, places: Tensor) -> None:
        """Write the weights of those at ``places`` among who still train to their numbers among all."""
        for layer, own in zip(into, self.rule.layers, strict=True):
            layer[numbers.to(self.device)] = own.detach()[places.to(self.device)]

    def _copy(self) -> list[Tensor]:
        """The weights of all: those of the replicas that left as they were then."""
        if not hasattr(self, "ended"):
            return [layer.detach().clone() for layer in self.rule.layers]
        copy = [layer.clone() for layer in self.ended]
        self._settle(copy, self.there, torch.arange(len(self.there)))
        return copy

    def _spread(self, value_R: Tensor) -> Tensor:
        """Values of those that still train as values of all, nan for the others."""
        found_R = torch.full((self.n,), torch.nan)
        found_R[self.there] = value_R.float().cpu()
        return found_R
