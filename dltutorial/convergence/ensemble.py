"""Train many small networks as one tensor program, for example one replica for each learning rate and seed.

In: a ``Survey``, replicas (a learning rate and a seed each), and one batch size. Out: an ``EnsembleRun``, which has the
loss and the accuracy of every replica during training, and its weights at the end. Small matmuls leave a CPU or GPU
mostly idle, so R of them in one ``baddbmm`` cost little more than one. The result of each replica is the same as if it
had been trained alone, because its initial weights and the order of its images depend only on its seed. Replicas with
another batch size have other shapes and need another ensemble.

A replica leaves the ensemble when its loss is no longer finite (it has diverged), or when it has reached its target.
Then its weights no longer change, the tensors become smaller, and the other replicas continue. The update rules and
their sources are in ``stacked_optimizers``.

Legend: R replicas, A of them still train, S different seeds, E evaluations, B images in a batch, N images, F features.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dltutorial import machine, node
from dltutorial.convergence import networks
from dltutorial.convergence.stacked_optimizers import Update, adam, sgd
from dltutorial.data.surveys import Survey
from dltutorial.optim.schedules import Schedule, constant

WIDTHS = (64, 32)  # outputs of each hidden layer
OPTIMIZERS: dict[str, Update] = {"sgd": sgd, "adam": adam}
_ROWS_AT_ONCE = 8192  # images of all replicas: with 256 features 8 MB, which fit into the cache of a CPU
_ROWS_FOR_THREADS = 2048  # below this number, a second thread costs more time than it saves


class Order:
    """The order in which R replicas use their images: one shuffled epoch after the other, divided into batches.

    The order of a replica depends only on its seed. With any batch size, the same images come in the same order. A
    batch may contain the end of one epoch and the start of the next. Replicas with the same seed share the work.
    """

    def __init__(self, seeds: Sequence[int], n_images: int) -> None:
        """Take the seed of each replica, and the number of training images."""
        self.n_images = n_images
        different = list(dict.fromkeys(seeds))
        self.which_R = torch.tensor([different.index(seed) for seed in seeds])
        # The weights are drawn from the generator of the seed itself, so the order needs another one.
        order_seeds = [(seed + 0x9E3779B97F4A7C15) % 2**63 for seed in different]
        self.generators = [torch.Generator().manual_seed(seed) for seed in order_seeds]
        self.remaining_SN = torch.empty(len(different), 0, dtype=torch.int64)

    def next(self, batch_size: int) -> Tensor:
        """The indices (R, B), int64, of the next batch of every replica."""
        while self.remaining_SN.shape[1] < batch_size:
            epoch_SN = torch.stack([torch.randperm(self.n_images, generator=g) for g in self.generators])
            self.remaining_SN = torch.cat([self.remaining_SN, epoch_SN], 1)
        batch_SB, self.remaining_SN = self.remaining_SN.tensor_split([batch_size], 1)
        return batch_SB[self.which_R]


@dataclass(frozen=True)
class Replica:
    """One training run.

    Attributes:
        learning_rate: its peak rate.
        seed: of its initial weights and of the order of its images.
        schedule: of its rate. By default the rate is constant.
    """

    learning_rate: float
    seed: int = 0
    schedule: Schedule = field(default_factory=constant)


@dataclass(frozen=True)
class EnsembleRun:
    """The result of R replicas. All of it is on the CPU, except for the weights.

    Attributes:
        steps: updates before each evaluation, (E,) int64, ascending.
        train_loss_RE: mean loss of the batches since the previous evaluation, (R, E); nan after a replica has left.
        valid_accuracy_RE: accuracy on the validation images, (R, E); nan after a replica has left.
        diverged_R: whether the loss became infinite or nan, (R,) bool.
        layers: weights at the end, (R, …) each, see ``networks``.
        layers_after: for each of ``keep_steps``, the weights after so many updates.
    """

    steps: Tensor
    train_loss_RE: Tensor
    valid_accuracy_RE: Tensor
    diverged_R: Tensor
    layers: Sequence[Tensor]
    layers_after: Mapping[int, Sequence[Tensor]]

    def replica(self, number: int) -> nn.Sequential:
        """The network of one replica, with its weights at the end, or at the time when it left."""
        return networks.unstacked(self.layers, number)

    def after(self, step: int, number: int) -> nn.Sequential:
        """The network of one replica after a number of updates, which is one of ``keep_steps``."""
        return networks.unstacked(self.layers_after[step], number)

    def accuracy(self, x_NF: Tensor, y_N: Tensor) -> Tensor:
        """Accuracy (R,) of the weights at the end on any images; nan for replicas that diverged."""
        device = self.layers[0].device
        accuracy_R = networks.accuracies(self.layers, x_NF.to(device), y_N.to(device)).cpu()
        return accuracy_R.masked_fill(self.diverged_R, torch.nan)

    def steps_to(self, target: float) -> Tensor:
        """Updates before the first evaluation with this validation accuracy, (R,) float32; nan if there is none."""
        reached_RE = self.valid_accuracy_RE >= target  # a comparison with nan is false
        first_R = reached_RE.int().argmax(1)
        return self.steps[first_R].float().masked_fill(~reached_RE.any(1), torch.nan)


def train(
    survey: Survey,
    replicas: Sequence[Replica],
    batch_size: int,
    steps: int,
    *,
    optimizer: str | Update = "sgd",
    gain: float = 1.0,
    evaluate_every: int | Sequence[int] = 10,
    until: float | None = None,
    stop: Callable[[Tensor], bool] | None = None,
    keep_steps: Sequence[int] = (),
    device: str | None = None,
) -> EnsembleRun:
    """Train all replicas. An evaluation always follows the last update.

    Args:
        survey: the images.
        replicas: R of them.
        batch_size: images in one update of each replica.
        steps: updates of each replica.
        optimizer: "sgd" (with momentum 0.9), "adam", or a function that updates a layer of all replicas.
        gain: of the initial weights, see ``networks.network``.
        evaluate_every: updates between two evaluations; or the numbers of updates after which to evaluate.
        until: a replica leaves when an evaluation has this accuracy. The other replicas continue.
        stop: is called after each evaluation, with the present ``steps_to(until)`` (R,). If it returns True, the
            training ends.
        keep_steps: numbers of updates, which may contain 0, after which to copy all weights for ``EnsembleRun.after``.
        device: where to compute. The default is the device of this machine.

    Raises:
        CourseError: This is a login node.
    """
    node.refuse_on_login("training")
    device = device or machine.device()
    if isinstance(optimizer, str):
        optimizer = OPTIMIZERS[optimizer]
    active = _ActiveReplicas(survey, replicas, gain, optimizer, device)
    x_valid_NF = survey.x_valid.to(device)
    y_valid_N = survey.y_valid.to(device)
    layers_after = {}
    if 0 in keep_steps:
        layers_after[0] = active.weights()
    reached_step_R = torch.full((len(replicas),), torch.nan)
    evaluations: list[int] = []
    losses: list[Tensor] = []
    accuracies: list[Tensor] = []
    step = 0
    with _threads(len(replicas) * batch_size, device):
        for end in _evaluations(evaluate_every, steps, keep_steps):
            loss_R = active.update(step, end, batch_size)
            accuracy_R = active.scatter(networks.accuracies(active.layers, x_valid_NF, y_valid_N))
            step = end
            evaluations.append(end)
            losses.append(loss_R)
            accuracies.append(accuracy_R)
            if end in keep_steps:
                layers_after[end] = active.weights()
            if until is not None:
                reached_R = accuracy_R >= until
                reached_step_R[reached_R] = end
                active.leave(reached_R)
            if len(active) == 0:
                break
            if stop is not None and stop(reached_step_R):
                break
    return EnsembleRun(
        steps=torch.tensor(evaluations),
        train_loss_RE=torch.stack(losses, 1),
        valid_accuracy_RE=torch.stack(accuracies, 1),
        diverged_R=active.diverged_R,
        layers=active.weights(),
        layers_after=layers_after,
    )


def log_spaced(steps: int) -> list[int]:
    """Numbers of updates after which to evaluate: from 1 to ``steps``, each about 6% larger than the one before."""
    numbers: list[int] = []
    position = 1.0
    while round(position) < steps:
        numbers.append(round(position))
        position = max(1.06 * position, numbers[-1] + 1)
    return [*numbers, steps]


def _evaluations(every: int | Sequence[int], steps: int, keep_steps: Sequence[int]) -> list[int]:
    """The numbers of updates after which to evaluate, ascending. They include ``keep_steps`` and the last update."""
    if isinstance(every, int):
        every = range(every, steps, every)
    numbers = {number for number in (*every, *keep_steps) if 0 < number < steps}
    return sorted({*numbers, steps})


class _ActiveReplicas:
    """The A replicas that still train.

    Attributes:
        numbers_A: their numbers among all replicas.
        layers: their weights, (A, …) each.
        states: the optimizer state of each layer: tensors (A, …) by name, and numbers that all replicas share.
        diverged_R: for all replicas, whether the loss has become infinite or nan.
    """

    def __init__(
        self,
        survey: Survey,
        replicas: Sequence[Replica],
        gain: float,
        update_rule: Update,
        device: str,
    ) -> None:
        """Draw the initial weights of all replicas."""
        sizes = (survey.n_features, *WIDTHS, survey.n_classes)
        initial = [networks.network(sizes, replica.seed, gain) for replica in replicas]
        self.layers = networks.stacked(initial, device)
        self.states: list[dict[str, Any]] = [{} for _ in self.layers]
        self.update_rule = update_rule
        self.replicas = replicas
        self.order = Order([replica.seed for replica in replicas], len(survey))
        self.x_train_NF = survey.x_train.to(device)
        self.y_train_N = survey.y_train.to(device)
        self.device = device
        self.numbers_A = torch.arange(len(replicas))
        self.diverged_R = torch.zeros(len(replicas), dtype=torch.bool)
        self._all_layers = [layer.detach().clone() for layer in self.layers]  # correct for the replicas that have left

    def __len__(self) -> int:
        """How many replicas still train."""
        return len(self.numbers_A)

    def update(self, start: int, end: int, batch_size: int) -> Tensor:
        """Make the updates from ``start`` to ``end``.

        Returns:
            The mean loss (R,) of these updates, on the CPU; nan for replicas that have left.
        """
        total_R = torch.zeros(len(self.replicas))
        for step in range(start, end):
            indices_AB = self.order.next(batch_size)[self.numbers_A]
            loss_A, gradients = self._gradients(indices_AB.to(self.device))
            is_finite_A = loss_A.isfinite()
            if not is_finite_A.all():
                gradients = [gradient[is_finite_A] for gradient in gradients]
                self.diverged_R[self.numbers_A] = ~is_finite_A
                self.leave(self.diverged_R)
            if len(self) == 0:
                break
            total_R[self.numbers_A] += loss_A[is_finite_A]
            rate_A11 = self._rates(step)
            with torch.no_grad():
                for layer, gradient, state in zip(self.layers, gradients, self.states, strict=True):
                    self.update_rule(layer, gradient, state, rate_A11)
        return self.scatter(total_R[self.numbers_A] / (end - start))

    def _gradients(self, indices_AB: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss (A,) of a batch, on the CPU, and its gradients.

        A CPU computes them in parts that fit into its cache.
        """
        A, B = indices_AB.shape
        images_at_once = B
        if self.device == "cpu":
            images_at_once = max(1, _ROWS_AT_ONCE // A)
        total_A = torch.zeros(A, device=self.device)
        total: list[Tensor] = []
        for part_AB in indices_AB.split(images_at_once, 1):
            x_ABF = self.x_train_NF.index_select(0, part_AB.reshape(-1)).view(*part_AB.shape, -1)
            logits_ABC = networks.logits(self.layers, x_ABF)
            loss_A = networks.losses(logits_ABC, self.y_train_N[part_AB]) * (part_AB.shape[1] / B)
            gradients = torch.autograd.grad(loss_A.sum(), self.layers)
            total_A += loss_A.detach()
            if not total:
                total = list(gradients)
                continue
            for summed, gradient in zip(total, gradients, strict=True):
                summed.add_(gradient)
        return total_A.cpu(), total

    def _rates(self, step: int) -> Tensor:
        """The learning rates (A, 1, 1) of an update."""
        rates = []
        for number in self.numbers_A.tolist():
            replica = self.replicas[number]
            rates.append(replica.learning_rate * replica.schedule(step))
        return torch.tensor(rates, device=self.device)[:, None, None]

    def leave(self, is_leaving_R: Tensor) -> None:
        """Let some replicas leave.

        Args:
            is_leaving_R: for all replicas, bool. It may be True for replicas that have left before.
        """
        is_staying_A = ~is_leaving_R[self.numbers_A]
        if is_staying_A.all():
            return
        self._all_layers = self.weights()
        self.numbers_A = self.numbers_A[is_staying_A]
        self.layers = [layer.detach()[is_staying_A].requires_grad_() for layer in self.layers]
        for state in self.states:
            for name, value in state.items():
                if isinstance(value, Tensor):
                    state[name] = value[is_staying_A]

    def weights(self) -> list[Tensor]:
        """A copy of the weights of all replicas. Those of a replica that has left are from the time when it left."""
        layers = [layer.clone() for layer in self._all_layers]
        for all_layer, layer in zip(layers, self.layers, strict=True):
            all_layer[self.numbers_A] = layer.detach()
        return layers

    def scatter(self, value_A: Tensor) -> Tensor:
        """A value of each replica that still trains as a value (R,) of all replicas, on the CPU; nan for the others."""
        value_R = torch.full((len(self.replicas),), torch.nan)
        value_R[self.numbers_A] = value_A.cpu()
        return value_R


@contextlib.contextmanager
def _threads(rows: int, device: str) -> Iterator[None]:
    """Use one thread for small matmuls, because two threads would wait for each other most of the time.

    Args:
        rows: images of all replicas in one update.
        device: where the replicas train.
    """
    before = torch.get_num_threads()
    if device == "cpu" and rows < _ROWS_FOR_THREADS:
        machine.use_cores(1)
    try:
        yield
    finally:
        machine.use_cores(before)
