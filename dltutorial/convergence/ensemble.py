"""Train many small networks as one tensor program: learning rates × seeds side by side in batched products.

In: a ``Survey``, replicas (learning rate and seed each), one batch size. Out: an ``EnsembleRun``: loss and accuracy of
every replica along the way, and its weights at the end. Small products leave a processor idle; R of them in one
``baddbmm`` cost little more than one. Each replica comes out as if it had been trained alone: its weights at the start
and the order of its images depend on its seed, on nothing else. Replicas of other batch sizes have other shapes and
need a program of their own.

A replica leaves when its loss is no longer finite (it has diverged), or when it has reached what it was trained for;
its weights stay as they were, the tensors shrink, and the others go on.

Legend: R replicas, E evaluations, B images in a batch, N images, F features.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dltutorial import machine, node
from dltutorial.convergence import networks
from dltutorial.convergence.stacked_optimizers import Update, adam, sgd
from dltutorial.data.surveys import Survey
from dltutorial.errors import RecipeError
from dltutorial.optim.schedules import Schedule, constant

BatchSize = Callable[[int], int]
_OPTIMIZERS: dict[str, Update] = {"sgd": sgd, "adam": adam}
_ROWS_AT_ONCE = 8192  # of the images of all replicas: 8 MB with 256 features, what a CPU's cache can hold
_ROWS_FOR_THREADS = 2048  # below, a second thread costs more than it brings


class Order:
    """The order in which R replicas see their images: one shuffled epoch after another, cut into batches.

    A replica's order depends on its seed alone: whatever the batch size, the same images come in the same order. A
    batch may end one epoch and begin the next. Replicas with one seed share the work.
    """

    def __init__(self, seeds: Sequence[int], n_images: int) -> None:
        self.n_images = n_images
        names = list(dict.fromkeys(seeds))
        self.which_R = torch.tensor([names.index(seed) for seed in seeds])
        # Not the generator of the weights: another stream of the same seed.
        others = [(seed + 0x9E3779B97F4A7C15) % 2**63 for seed in names]
        self.generators = [torch.Generator().manual_seed(seed) for seed in others]
        self.left_SN = torch.empty(len(names), 0, dtype=torch.int64)

    def next(self, batch_size: int) -> Tensor:
        """The numbers (R, B), int64, of the next batch of every replica."""
        while self.left_SN.shape[1] < batch_size:
            epoch_SN = torch.stack([torch.randperm(self.n_images, generator=g) for g in self.generators])
            self.left_SN = torch.cat([self.left_SN, epoch_SN], 1)
        batch_SB, self.left_SN = self.left_SN.tensor_split([batch_size], 1)
        return batch_SB[self.which_R]


@dataclass(frozen=True)
class Replica:
    """One training run: its peak rate, the seed of its weights and order, its schedule (None: the ensemble's)."""

    learning_rate: float
    seed: int = 0
    schedule: Schedule | None = None


@dataclass(frozen=True)
class EnsembleRun:
    """What came of R replicas. Everything is on the CPU, but the weights.

    Attributes:
        steps: (E,) int64: updates done at each evaluation, ascending.
        train_loss_RE: (R, E) mean loss of the batches since the last evaluation; nan once a replica has left.
        valid_accuracy_RE: (R, E) of the validation images; nan once a replica has left.
        diverged_at_R: (R,) int64: the update (from 0) whose loss became infinite or nan; -1 if none.
        layers: weights at the end, (R, …) each, see ``networks``.
        kept_layers: step → weights then, for each of ``keep_steps``.
        at_loss_layers: weights when ``keep_at_loss`` was reached.
        at_loss_step_R: (R,) float32: the updates done then; nan where it never was, or was not asked for.
    """

    steps: Tensor
    train_loss_RE: Tensor
    valid_accuracy_RE: Tensor
    diverged_at_R: Tensor
    layers: Sequence[Tensor]
    kept_layers: Mapping[int, Sequence[Tensor]]
    at_loss_layers: Sequence[Tensor]
    at_loss_step_R: Tensor

    @property
    def diverged_R(self) -> Tensor:
        """(R,) bool: the loss became infinite or nan."""
        return self.diverged_at_R >= 0

    def replica(self, number: int) -> nn.Sequential:
        """The network of one replica, with its weights at the end (for one that left: when it did)."""
        return networks.unstacked(self.layers, number)

    def kept(self, step: int, number: int) -> nn.Sequential:
        """The network of one replica after so many updates. RecipeError: these weights were not asked for."""
        if step not in self.kept_layers:
            raise RecipeError(f"nothing was kept after {step} updates; train with keep_steps=({step},)")
        return networks.unstacked(self.kept_layers[step], number)

    def at_loss(self, number: int) -> nn.Sequential | None:
        """The network of one replica when its training loss first was ``keep_at_loss``; None if it never was."""
        return None if self.at_loss_step_R[number].isnan() else networks.unstacked(self.at_loss_layers, number)

    def accuracy(self, x_NF: Tensor, y_N: Tensor) -> Tensor:
        """Accuracy (R,) of the weights at the end on any images; nan for the diverged."""
        device = self.layers[0].device
        found_R = networks.accuracies(self.layers, x_NF.to(device), y_N.to(device)).cpu()
        return found_R.masked_fill(self.diverged_R, torch.nan)

    def steps_to(self, target: float) -> Tensor:
        """Updates (R,), float32, until an evaluation first had this validation accuracy; nan where none had."""
        there_RE = self.valid_accuracy_RE >= target  # nan is not
        return self.steps[there_RE.int().argmax(1)].float().masked_fill(~there_RE.any(1), torch.nan)


def train(
    survey: Survey,
    replicas: Sequence[Replica],
    batch_size: int | BatchSize,
    steps: int,
    *,
    widths: Sequence[int] = (64, 32),
    optimizer: str | Update = "sgd",
    schedule: Schedule | None = None,
    gain: float = 1.0,
    evaluate_every: int | Sequence[int] = 10,
    until: float | None = None,
    stop: Callable[[int, Tensor], bool] | None = None,
    keep_steps: Sequence[int] = (),
    keep_at_loss: float | None = None,
    device: str | None = None,
) -> EnsembleRun:
    """Train all replicas for so many updates; the last one is always followed by an evaluation.

    Args:
        survey: the images.
        replicas: R of them.
        batch_size: images in one update of each replica, or a function step, from 0 → images.
        steps: updates of each replica.
        widths: of the hidden layers.
        optimizer: "sgd" (with momentum 0.9), "adam", or a function that updates a layer of all replicas.
        schedule: step, from 0 → factor of the peak rate, for replicas that have none of their own; default: 1.
        gain: of the initial weights, see ``networks.network``.
        evaluate_every: updates between two evaluations, or the numbers of updates at which to evaluate.
        until: a replica leaves when an evaluation has this accuracy, which fixes its ``steps_to(until)``; others go on.
        stop: called after each evaluation with the updates done and ``steps_to(until)`` so far (R,); True ends all.
        keep_steps: numbers of updates, 0 among them, after which to keep all weights for ``EnsembleRun.kept``.
        keep_at_loss: keep each replica's weights at the first evaluation with this training loss.
        device: where to compute; default: the course's device.

    Raises:
        RecipeError: no replica, no step, a batch larger than the data, no such optimizer, a rate that is not positive.
        CourseError: a login node.
    """
    node.refuse_on_login("training")
    if not replicas or min(widths, default=1) < 1:
        raise RecipeError(f"{len(replicas)} replicas of widths {tuple(widths)}: take at least 1 of each")
    ends = _evaluations(evaluate_every, steps, keep_steps)
    sizes = [batch_size(step) if callable(batch_size) else batch_size for step in range(steps)]
    schedules = [replica.schedule or schedule or constant() for replica in replicas]
    if not 1 <= min(sizes) <= max(sizes) <= len(survey):
        raise RecipeError(f"a batch of {max(sizes)} from {len(survey)} training images; take 1 to {len(survey)}")
    if not all(0 < replica.learning_rate < float("inf") for replica in replicas):
        raise RecipeError(f"learning rates {[r.learning_rate for r in replicas]} must be finite and greater than 0")
    if isinstance(optimizer, str) and optimizer not in _OPTIMIZERS:
        raise RecipeError(f"no optimizer {optimizer!r}; choose one of {', '.join(_OPTIMIZERS)}, or give a function")
    device = device or machine.device()
    widths = (survey.n_features, *widths, survey.n_classes)
    layers = networks.stacked([networks.network(widths, replica.seed, gain) for replica in replicas], device)
    optimize = _OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    group = _Replicas(layers, optimize, survey, replicas, schedules)
    valid = survey.x_valid.to(device), survey.y_valid.to(device)
    kept = {0: group.weights()} if 0 in keep_steps else {}
    at_loss, at_loss_step_R = group.weights(), torch.full((len(replicas),), torch.nan)
    reached_R, done = torch.full((len(replicas),), torch.nan), [0]
    losses: list[Tensor] = []
    scores: list[Tensor] = []
    with _threads(len(replicas) * sizes[0], device):
        for end in ends:
            losses.append(group.spread(group.update(done[-1], sizes[done[-1] : end])))
            scores.append(group.spread(networks.accuracies(group.layers, *valid)))
            done.append(end)
            if end in keep_steps:
                kept[end] = group.weights()
            if keep_at_loss is not None:
                new_R = (losses[-1] <= keep_at_loss) & at_loss_step_R.isnan()
                group.write_weights(at_loss, new_R)
                at_loss_step_R[new_R] = float(end)
            if until is not None:
                reached_R[scores[-1] >= until] = float(end)
                group.leave(scores[-1] >= until)
            if not len(group.there) or (stop is not None and stop(end, reached_R.clone())):
                break
    return EnsembleRun(
        steps=torch.tensor(done[1:]), train_loss_RE=torch.stack(losses, 1), valid_accuracy_RE=torch.stack(scores, 1),
        diverged_at_R=group.diverged_at_R, layers=group.weights(), kept_layers=kept, at_loss_layers=at_loss,
        at_loss_step_R=at_loss_step_R,
    )  # fmt: skip


def log_spaced(steps: int, ratio: float = 1.06) -> list[int]:
    """Numbers of updates at which to evaluate: 1 to ``steps``, each about ``ratio`` times the one before."""
    found, at = [], 1.0
    while round(at) < steps:
        found.append(round(at))
        at = max(at * ratio, found[-1] + 1)
    return [*found, steps]


class _Replicas:
    """R replicas in training; ``there`` are the numbers of those that still do, whose weights ``layers`` has.

    ``states``: what the optimizer remembers of each layer, tensors (R, …) by name, and numbers that all share.
    """

    def __init__(
        self,
        layers: Sequence[Tensor],
        optimize: Update,
        survey: Survey,
        replicas: Sequence[Replica],
        schedules: Sequence[Schedule],
    ) -> None:
        self.layers, self.optimize, self.schedules = list(layers), optimize, schedules
        self.states: list[dict[str, Any]] = [{} for _ in layers]
        self.device, self.n = layers[0].device, len(replicas)
        self.rates = [replica.learning_rate for replica in replicas]
        self.order = Order([replica.seed for replica in replicas], len(survey))
        self.x_train, self.y_train = survey.x_train.to(self.device), survey.y_train.to(self.device)
        self.there = torch.arange(self.n)
        self.diverged_at_R = torch.full((self.n,), -1)
        self._left = [layer.detach().clone() for layer in layers]  # weights of those that left

    def update(self, start: int, sizes: Sequence[int]) -> Tensor:
        """Updates from ``start`` on with batches of these sizes; the mean loss of those that still train afterwards."""
        rates_SR11 = self._rates(start, start + len(sizes))
        total_R = torch.zeros(len(self.there), device=self.device)
        for step, size in enumerate(sizes):
            loss_R, gradients = self._gradients(self.order.next(size).to(self.device))
            good_R = loss_R.isfinite()
            if not good_R.all():
                bad = self.spread(~good_R) == 1
                self.diverged_at_R[bad] = start + step
                gradients = [gradient[good_R] for gradient in gradients]
                total_R, loss_R, rates_SR11 = total_R[good_R], loss_R[good_R], rates_SR11[:, good_R]
                self.leave(bad)
            if not len(self.there):
                break
            with torch.no_grad():
                for layer, gradient, state in zip(self.layers, gradients, self.states, strict=True):
                    self.optimize(layer, gradient, state, rates_SR11[step])
            total_R += loss_R
        return total_R / len(sizes)

    def _gradients(self, chosen_RB: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Loss (R,) of a batch and its gradients; on a CPU in parts that fit into its cache."""
        R, B = chosen_RB.shape
        at_once = B if self.device.type != "cpu" else max(1, _ROWS_AT_ONCE // R)
        total_R, total = torch.zeros(R, device=self.device), list[Tensor]()
        for part_RB in chosen_RB.split(at_once, 1):
            x_RBF = self.x_train.index_select(0, part_RB.reshape(-1)).view(*part_RB.shape, -1)
            logits_RBC = networks.logits(self.layers, x_RBF)
            loss_R = networks.losses(logits_RBC, self.y_train[part_RB]) * (part_RB.shape[1] / B)
            gradients = torch.autograd.grad(loss_R.sum(), self.layers)
            total_R += loss_R.detach()
            total = [a.add_(b) for a, b in zip(total, gradients, strict=True)] if total else list(gradients)
        return total_R, total

    def _rates(self, start: int, end: int) -> Tensor:
        """The learning rates of those that still train, (steps, R, 1, 1)."""
        there = self.there.tolist()
        rates = [[self.rates[r] * self.schedules[r](step) for r in there] for step in range(start, end)]
        return torch.tensor(rates, dtype=torch.float32, device=self.device)[..., None, None]

    def leave(self, leaving_R: Tensor) -> None:
        """Some of all R train no more; those that have left already may be among them."""
        stay = (~leaving_R[self.there]).nonzero()[:, 0]
        if len(stay) == len(self.there):
            return
        self._left = self.weights()
        self.there, self.order.which_R = self.there[stay], self.order.which_R[stay]
        stay = stay.to(self.device)
        self.layers = [w.detach()[stay].requires_grad_() for w in self.layers]
        own = lambda x: x[stay] if isinstance(x, Tensor) and x.ndim else x  # noqa: E731
        self.states = [{name: own(x) for name, x in state.items()} for state in self.states]

    def weights(self) -> list[Tensor]:
        """A copy of the weights of all: those of the replicas that left as they were then."""
        found = [layer.clone() for layer in self._left]
        self.write_weights(found, torch.ones(self.n, dtype=torch.bool))
        return found

    def write_weights(self, into: Sequence[Tensor], wanted_R: Tensor) -> None:
        """Write the weights of those that are wanted and still train into tensors (R, …)."""
        places = wanted_R[self.there].nonzero()[:, 0]
        numbers = self.there[places].to(self.device)
        for layer, own in zip(into, self.layers, strict=True):
            layer[numbers] = own.detach()[places.to(self.device)]

    def spread(self, value_R: Tensor) -> Tensor:
        """Values of those that still train as values of all R, nan for the others."""
        found_R = torch.full((self.n,), torch.nan)
        found_R[self.there] = value_R.float().cpu()
        return found_R


@contextlib.contextmanager
def _threads(rows: int, device: str) -> Iterator[None]:
    """Compute small products with one thread: two would wait for each other most of the time."""
    before = torch.get_num_threads()
    machine.use_cores(1 if device == "cpu" and rows < _ROWS_FOR_THREADS else before)
    try:
        yield
    finally:
        machine.use_cores(before)


def _evaluations(every: int | Sequence[int], steps: int, keep_steps: Sequence[int]) -> list[int]:
    if steps < 1 or (isinstance(every, int) and every < 1):
        raise RecipeError(f"{steps} steps, evaluated every {every}: nothing to train; take at least 1")
    if any(not 0 <= step <= steps for step in keep_steps):
        raise RecipeError(f"keep_steps {tuple(keep_steps)}: a run of {steps} steps has 0 to {steps}; take those")
    at = range(every, steps, every) if isinstance(every, int) else every
    return sorted({number for number in (*at, *keep_steps) if 0 < number < steps} | {steps})
