"""Train many small networks as one tensor program, for example one replica for each learning rate and seed.

In: a ``Survey``, replicas (a learning rate and a seed each), and one batch size. Out: an ``EnsembleRun``, which has the
loss and the accuracy of every replica during training, and its weights at the end. Small matmuls leave a CPU or GPU
mostly idle, so R of them in one ``baddbmm`` cost little more than one. The result of each replica is the same as if it
had been trained alone, because its initial weights and the order of its images depend only on its seed. Replicas with
another batch size have other shapes and need another ensemble.

A replica leaves the ensemble when its loss is no longer finite (it has diverged), or when it has reached its target.
Then its weights no longer change, the tensors become smaller, and the other replicas continue. The update rules and
their sources are in ``stacked_optimizers``.

Legend: R replicas, S seeds that differ (in ``Order``) or steps (in learning rates), E evaluations, B images in a batch,
N images, F features.
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
        schedule: of its rate; None is the schedule of the ensemble.
    """

    learning_rate: float
    seed: int = 0
    schedule: Schedule | None = None


@dataclass(frozen=True)
class EnsembleRun:
    """The result of R replicas. All of it is on the CPU, except for the weights.

    Attributes:
        steps: updates before each evaluation, (E,) int64, ascending.
        train_loss_RE: mean loss of the batches since the previous evaluation, (R, E); nan after a replica has left.
        valid_accuracy_RE: accuracy on the validation images, (R, E); nan after a replica has left.
        diverged_at_R: the update, counted from 0, whose loss was infinite or nan, (R,) int64; -1 if there is none.
        layers: weights at the end, (R, …) each, see ``networks``.
        layers_after: for each of ``keep_steps``, the weights after so many updates.
        at_loss_layers: weights at the first evaluation with the loss ``keep_at_loss``.
        at_loss_step_R: updates before this evaluation, (R,) float32; nan if there was none.
    """

    steps: Tensor
    train_loss_RE: Tensor
    valid_accuracy_RE: Tensor
    diverged_at_R: Tensor
    layers: Sequence[Tensor]
    layers_after: Mapping[int, Sequence[Tensor]]
    at_loss_layers: Sequence[Tensor]
    at_loss_step_R: Tensor

    @property
    def diverged_R(self) -> Tensor:
        """Whether the loss became infinite or nan, (R,) bool."""
        return self.diverged_at_R >= 0

    def replica(self, number: int) -> nn.Sequential:
        """The network of one replica, with its weights at the end, or at the time when it left."""
        return networks.unstacked(self.layers, number)

    def after(self, step: int, number: int) -> nn.Sequential:
        """The network of one replica after a number of updates.

        Raises:
            RecipeError: ``keep_steps`` did not contain this number.
        """
        if step not in self.layers_after:
            raise RecipeError(f"no weights after {step} updates; train with keep_steps=({step},)")
        return networks.unstacked(self.layers_after[step], number)

    def at_loss(self, number: int) -> nn.Sequential | None:
        """The network of one replica when its training loss first was ``keep_at_loss``; None if it never was."""
        if self.at_loss_step_R[number].isnan():
            return None
        return networks.unstacked(self.at_loss_layers, number)

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
    """Train all replicas. An evaluation always follows the last update.

    Args:
        survey: the images.
        replicas: R of them.
        batch_size: images in one update of each replica; or a function of the step, counted from 0.
        steps: updates of each replica.
        widths: outputs of each hidden layer.
        optimizer: "sgd" (with momentum 0.9), "adam", or a function that updates a layer of all replicas.
        schedule: of the replicas that have none of their own. By default the rate is constant.
        gain: of the initial weights, see ``networks.network``.
        evaluate_every: updates between two evaluations; or the numbers of updates after which to evaluate.
        until: a replica leaves when an evaluation has this accuracy. The other replicas continue.
        stop: is called after each evaluation, with the number of updates and the present ``steps_to(until)`` (R,). If
            it returns True, the training ends.
        keep_steps: numbers of updates, which may contain 0, after which to copy all weights for ``EnsembleRun.after``.
        keep_at_loss: copy the weights of each replica at its first evaluation with this training loss.
        device: where to compute. The default is the device of this machine.

    Raises:
        RecipeError: There is no replica, no step, or no optimizer of this name; a batch is larger than the data; or a
            rate is not positive.
        CourseError: This is a login node.
    """
    node.refuse_on_login("training")
    evaluations = _evaluations(evaluate_every, steps, keep_steps)
    sizes = _batch_sizes(batch_size, steps)
    _check(survey, replicas, widths, sizes)
    device = device or machine.device()
    initial = [
        networks.network((survey.n_features, *widths, survey.n_classes), replica.seed, gain) for replica in replicas
    ]
    layers = networks.stacked(initial, device)
    active = _ActiveReplicas(layers, _update_rule(optimizer), survey, replicas, schedule or constant())
    valid = (survey.x_valid.to(device), survey.y_valid.to(device))
    layers_after = {}
    if 0 in keep_steps:
        layers_after[0] = active.weights()
    at_loss_layers = active.weights()
    at_loss_step_R = torch.full((len(replicas),), torch.nan)
    reached_step_R = torch.full((len(replicas),), torch.nan)
    done: list[int] = []
    losses: list[Tensor] = []
    accuracies: list[Tensor] = []
    start = 0
    with _threads(len(replicas) * sizes[0], device):
        for end in evaluations:
            loss_R = active.scatter(active.update(start, sizes[start:end]))
            accuracy_R = active.scatter(networks.accuracies(active.layers, *valid))
            start = end
            done.append(end)
            losses.append(loss_R)
            accuracies.append(accuracy_R)
            if end in keep_steps:
                layers_after[end] = active.weights()
            if keep_at_loss is not None:
                is_first_R = (loss_R <= keep_at_loss) & at_loss_step_R.isnan()
                active.copy_weights(at_loss_layers, is_first_R)
                at_loss_step_R[is_first_R] = float(end)
            if until is not None:
                reached_step_R[accuracy_R >= until] = float(end)
                active.leave(accuracy_R >= until)
            if len(active) == 0:
                break
            if stop is not None and stop(end, reached_step_R.clone()):
                break
    return EnsembleRun(
        steps=torch.tensor(done),
        train_loss_RE=torch.stack(losses, 1),
        valid_accuracy_RE=torch.stack(accuracies, 1),
        diverged_at_R=active.diverged_at_R,
        layers=active.weights(),
        layers_after=layers_after,
        at_loss_layers=at_loss_layers,
        at_loss_step_R=at_loss_step_R,
    )


def log_spaced(steps: int, ratio: float = 1.06) -> list[int]:
    """Numbers of updates after which to evaluate: from 1 to ``steps``, each about ``ratio`` times the one before."""
    numbers: list[int] = []
    position = 1.0
    while round(position) < steps:
        numbers.append(round(position))
        position = max(position * ratio, numbers[-1] + 1)
    return [*numbers, steps]


def _evaluations(every: int | Sequence[int], steps: int, keep_steps: Sequence[int]) -> list[int]:
    """The numbers of updates after which to evaluate, ascending. They include ``keep_steps`` and the last update."""
    if steps < 1 or (isinstance(every, int) and every < 1):
        raise RecipeError(f"{steps} steps, evaluated every {every}: nothing to train; take at least 1")
    if any(not 0 <= step <= steps for step in keep_steps):
        raise RecipeError(f"keep_steps {tuple(keep_steps)}: a run of {steps} steps has 0 to {steps}; take those")
    if isinstance(every, int):
        every = range(every, steps, every)
    numbers = {number for number in (*every, *keep_steps) if 0 < number < steps}
    return sorted({*numbers, steps})


def _batch_sizes(batch_size: int | BatchSize, steps: int) -> list[int]:
    """The batch size of each update."""
    if callable(batch_size):
        return [batch_size(step) for step in range(steps)]
    return [batch_size] * steps


def _check(survey: Survey, replicas: Sequence[Replica], widths: Sequence[int], sizes: Sequence[int]) -> None:
    """Raise a RecipeError if such replicas cannot be trained."""
    if not replicas or min(widths, default=1) < 1:
        raise RecipeError(f"{len(replicas)} replicas of widths {tuple(widths)}: take at least 1 of each")
    if min(sizes) < 1 or max(sizes) > len(survey):
        raise RecipeError(f"a batch of {max(sizes)} from {len(survey)} training images; take 1 to {len(survey)}")
    rates = [replica.learning_rate for replica in replicas]
    if not all(0 < rate < float("inf") for rate in rates):
        raise RecipeError(f"learning rates {rates} must be finite and greater than 0")


def _update_rule(optimizer: str | Update) -> Update:
    """The function that updates a layer."""
    if not isinstance(optimizer, str):
        return optimizer
    if optimizer not in _OPTIMIZERS:
        raise RecipeError(f"no optimizer {optimizer!r}; choose one of {', '.join(_OPTIMIZERS)}, or give a function")
    return _OPTIMIZERS[optimizer]


class _ActiveReplicas:
    """The replicas that still train.

    Attributes:
        numbers_R: their numbers among all replicas.
        layers: their weights.
        states: the optimizer state of each layer: tensors (R, …) by name, and numbers that all replicas share.
        diverged_at_R: for all replicas, the update whose loss was not finite; -1 if there is none.
    """

    def __init__(
        self,
        layers: Sequence[Tensor],
        update_rule: Update,
        survey: Survey,
        replicas: Sequence[Replica],
        schedule: Schedule,
    ) -> None:
        """Take the initial weights of all replicas; the rest is as ``train`` has it."""
        self.layers = list(layers)
        self.states: list[dict[str, Any]] = [{} for _ in layers]
        self.update_rule = update_rule
        self.device = layers[0].device
        self.peak_rates = [replica.learning_rate for replica in replicas]
        self.schedules = [replica.schedule or schedule for replica in replicas]
        self.order = Order([replica.seed for replica in replicas], len(survey))
        self.x_train = survey.x_train.to(self.device)
        self.y_train = survey.y_train.to(self.device)
        self.n_all = len(replicas)
        self.numbers_R = torch.arange(self.n_all)
        self.diverged_at_R = torch.full((self.n_all,), -1)
        self._all_layers = [layer.detach().clone() for layer in layers]  # correct for the replicas that have left

    def __len__(self) -> int:
        """How many replicas still train."""
        return len(self.numbers_R)

    def update(self, start: int, sizes: Sequence[int]) -> Tensor:
        """Make one update for each batch size.

        Args:
            start: number of updates before these.
            sizes: batch size of each update.

        Returns:
            The mean loss (R,) of the replicas that still train after these updates.
        """
        rates_SR11 = self._rates(start, start + len(sizes))
        total_R = torch.zeros(len(self), device=self.device)
        for step, size in enumerate(sizes):
            loss_R, gradients = self._gradients(self.order.next(size).to(self.device))
            is_finite_R = loss_R.isfinite()
            if not is_finite_R.all():
                gradients = [gradient[is_finite_R] for gradient in gradients]
                total_R = total_R[is_finite_R]
                rates_SR11 = rates_SR11[:, is_finite_R]
                self._diverge(is_finite_R, start + step)
                loss_R = loss_R[is_finite_R]
            if len(self) == 0:
                break
            with torch.no_grad():
                for layer, gradient, state in zip(self.layers, gradients, self.states, strict=True):
                    self.update_rule(layer, gradient, state, rates_SR11[step])
            total_R += loss_R
        return total_R / len(sizes)

    def _gradients(self, indices_RB: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss (R,) of a batch and its gradients. A CPU computes them in parts that fit into its cache."""
        R, B = indices_RB.shape
        images_at_once = B
        if self.device.type == "cpu":
            images_at_once = max(1, _ROWS_AT_ONCE // R)
        total_R = torch.zeros(R, device=self.device)
        total: list[Tensor] = []
        for part_RB in indices_RB.split(images_at_once, 1):
            x_RBF = self.x_train.index_select(0, part_RB.reshape(-1)).view(*part_RB.shape, -1)
            logits_RBC = networks.logits(self.layers, x_RBF)
            loss_R = networks.losses(logits_RBC, self.y_train[part_RB]) * (part_RB.shape[1] / B)
            gradients = torch.autograd.grad(loss_R.sum(), self.layers)
            total_R += loss_R.detach()
            if not total:
                total = list(gradients)
                continue
            for summed, gradient in zip(total, gradients, strict=True):
                summed.add_(gradient)
        return total_R, total

    def _rates(self, start: int, end: int) -> Tensor:
        """The learning rates for some updates, (S, R, 1, 1)."""
        numbers = self.numbers_R.tolist()
        rates = [[self.peak_rates[n] * self.schedules[n](step) for n in numbers] for step in range(start, end)]
        return torch.tensor(rates, dtype=torch.float32, device=self.device)[..., None, None]

    def _diverge(self, is_finite_R: Tensor, step: int) -> None:
        """Note the replicas whose loss is not finite, and let them leave."""
        has_diverged = self.scatter(~is_finite_R) == 1
        self.diverged_at_R[has_diverged] = step
        self.leave(has_diverged)

    def leave(self, is_leaving: Tensor) -> None:
        """Let some replicas leave.

        Args:
            is_leaving: for all replicas, bool. It may be True for replicas that have left before.
        """
        staying = (~is_leaving[self.numbers_R]).nonzero()[:, 0]
        if len(staying) == len(self):
            return
        self._all_layers = self.weights()
        self.numbers_R = self.numbers_R[staying]
        self.order.which_R = self.order.which_R[staying]
        staying = staying.to(self.device)
        self.layers = [layer.detach()[staying].requires_grad_() for layer in self.layers]
        for state in self.states:
            for name, value in state.items():
                if isinstance(value, Tensor) and value.ndim > 0:
                    state[name] = value[staying]

    def weights(self) -> list[Tensor]:
        """A copy of the weights of all replicas. Those of a replica that has left are from the time when it left."""
        layers = [layer.clone() for layer in self._all_layers]
        self.copy_weights(layers, torch.ones(self.n_all, dtype=torch.bool))
        return layers

    def copy_weights(self, target: Sequence[Tensor], is_chosen: Tensor) -> None:
        """Copy the weights of the chosen replicas that still train.

        Args:
            target: layers of all replicas, which change in place.
            is_chosen: for all replicas, bool.
        """
        chosen = is_chosen[self.numbers_R].nonzero()[:, 0]
        numbers = self.numbers_R[chosen].to(self.device)
        for target_layer, layer in zip(target, self.layers, strict=True):
            target_layer[numbers] = layer.detach()[chosen.to(self.device)]

    def scatter(self, value_R: Tensor) -> Tensor:
        """A value of each replica that still trains as a value of all replicas, nan for the others."""
        values = torch.full((self.n_all,), torch.nan)
        values[self.numbers_R] = value_R.float().cpu()
        return values


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
