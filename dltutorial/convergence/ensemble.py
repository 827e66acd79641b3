"""Train many small networks as one tensor program: learning rates × seeds side by side in batched products.

In: a ``Survey``, replicas (learning rate and seed each), one batch size. Out: a ``Run``: loss and accuracy of every
replica along the way, and its weights at the end. Small products leave a processor idle; R of them in one ``baddbmm``
cost little more than one. Each replica comes out as if it had been trained alone: its weights at the start and the
order of its images depend on its seed, on nothing else. Replicas of other batch sizes have other shapes and need a
program of their own.

A replica whose loss is no longer finite has diverged: it leaves, with the weights that it had, and the others go on.

Legend: R replicas, E evaluations, N images, F features, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dltutorial import machine, node
from dltutorial.convergence import networks, rules
from dltutorial.convergence.order import Order
from dltutorial.convergence.program import Data, Plan, Program, threads
from dltutorial.data.surveys import Survey
from dltutorial.errors import RecipeError
from dltutorial.optim.schedules import check_run

Schedule = Callable[[int], float]
BatchSize = Callable[[int], int]


@dataclass(frozen=True)
class Replica:
    """One training run among many.

    Attributes:
        learning_rate: the peak of its schedule.
        seed: of its weights and of the order of its images.
        schedule: step, from 0 → factor of the peak; None: that of the whole ensemble.
    """

    learning_rate: float
    seed: int = 0
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Run:
    """What came of R replicas. Everything is on the CPU, but the weights.

    Attributes:
        replicas: as they were given.
        batch_size: images in an update, or the function of the step that told.
        steps: (E,) int64: updates done at each evaluation, ascending.
        train_loss_RE: (R, E) mean loss of the batches since the last evaluation; nan once a replica has left.
        valid_accuracy_RE: (R, E) of the validation images; nan once a replica has left.
        diverged_R: (R,) bool: the loss became infinite or nan.
        diverged_at_R: (R,) int64: the update (from 0) whose loss did; -1 if none.
        layers: weights at the end, (R, …) each, see ``networks``.
        kept_layers: step → weights then, for each of ``keep_steps``.
        at_loss_layers: weights when ``keep_at_loss`` was reached.
        at_loss_step_R: (R,) float32: the updates done then; nan where it never was, or was not asked for.
    """

    replicas: tuple[Replica, ...]
    batch_size: int | BatchSize
    steps: Tensor
    train_loss_RE: Tensor
    valid_accuracy_RE: Tensor
    diverged_R: Tensor
    diverged_at_R: Tensor
    layers: tuple[Tensor, ...]
    kept_layers: Mapping[int, Sequence[Tensor]]
    at_loss_layers: tuple[Tensor, ...]
    at_loss_step_R: Tensor

    def replica(self, number: int) -> nn.Sequential:
        """The network of one replica, with its weights at the end (for one that left: when it did)."""
        return networks.unstacked(self.layers, number)

    def kept(self, step: int, number: int) -> nn.Sequential:
        """The network of one replica after so many updates.

        Raises:
            RecipeError: these weights were not asked for.
        """
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

    def loss(self, x_NF: Tensor, y_N: Tensor) -> Tensor:
        """Mean cross-entropy (R,) of the weights at the end on any images; nan for the diverged."""
        device = self.layers[0].device
        with torch.no_grad():
            logits_RNC = networks.shared_logits(self.layers, x_NF.to(device))
            found_R = networks.losses(logits_RNC, y_N.to(device).expand(len(logits_RNC), -1)).cpu()
        return found_R.masked_fill(self.diverged_R, torch.nan)

    def steps_to(self, target: float) -> Tensor:
        """Updates (R,), float32, until an evaluation first had this validation accuracy; nan where none had."""
        there_RE = self.valid_accuracy_RE >= target  # nan is not
        first_R = there_RE.int().argmax(1)
        return self.steps[first_R].float().masked_fill(~there_RE.any(1), torch.nan)


def train(
    survey: Survey,
    replicas: Sequence[Replica],
    batch_size: int | BatchSize,
    steps: int,
    *,
    widths: Sequence[int] = (64, 32),
    optimizer: str | Callable[[Sequence[Tensor]], rules.Rule] = "sgd",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    gain: float = 1.0,
    evaluate_every: int | Sequence[int] = 10,
    until: float | None = None,
    stop: Callable[[int, Tensor], bool] | None = None,
    keep_steps: Sequence[int] = (),
    keep_at_loss: float | None = None,
    device: str | None = None,
) -> Run:
    """Train all replicas for so many updates; the last one is always followed by an evaluation.

    Args:
        survey: the images.
        replicas: R of them.
        batch_size: images in one update of each replica, or a function step, from 0 → images.
        steps: updates of each replica.
        widths: of the hidden layers.
        optimizer: "sgd", "adam", "adamw", or a function from layers (R, …) to a ``rules.Rule``.
        momentum: of "sgd".
        weight_decay: of the three.
        schedule: step, from 0 → factor of the peak rate, for replicas that have none of their own; default: 1.
        gain: of the initial weights, see ``networks.network``.
        evaluate_every: updates between two evaluations, or the numbers of updates at which to evaluate.
        until: a replica leaves when an evaluation has this accuracy, which fixes its ``steps_to(until)``; others go on.
        stop: called after each evaluation with the updates done and ``steps_to(until)`` so far (R,); True ends all.
        keep_steps: numbers of updates, 0 among them, after which to keep all weights for ``Run.kept``.
        keep_at_loss: keep each replica's weights at the first evaluation with this training loss for ``Run.at_loss``.
        device: where to compute; default: the course's device.

    Raises:
        RecipeError: no replica, no step, a batch larger than the data, no such optimizer, a rate that is not positive.
        CourseError: a schedule that does not fit the run; a login node.
    """
    node.refuse_on_login("training")
    sizes = batch_size if callable(batch_size) else lambda step: batch_size
    plan = Plan(sizes, _evaluations(evaluate_every, steps, keep_steps), until, stop, tuple(keep_steps), keep_at_loss)
    schedules = [replica.schedule or schedule or _constant for replica in replicas]
    _check(survey, replicas, plan, widths, schedules)
    device = device or machine.device()
    widths = (survey.n_features, *widths, survey.n_classes)
    layers = networks.stacked([networks.network(widths, replica.seed, gain) for replica in replicas], device)
    rule = rules.make(optimizer, layers, momentum, weight_decay)
    order = Order([replica.seed for replica in replicas], len(survey))
    data = Data(*(part.to(device) for part in (survey.x_train, survey.y_train, survey.x_valid, survey.y_valid)))
    with threads(len(replicas) * plan.batch_size(0), device):
        found = Program(plan, rule, data, order, [replica.learning_rate for replica in replicas], schedules).run()
    return Run(tuple(replicas), batch_size, **found)


def log_spaced(steps: int, ratio: float = 1.06) -> list[int]:
    """Numbers of updates at which to evaluate: 1 to ``steps``, each about ``ratio`` times the one before."""
    found, at = [], 1.0
    while round(at) < steps:
        found.append(round(at))
        at = max(at * ratio, found[-1] + 1)
    return [*found, steps]


def _evaluations(every: int | Sequence[int], steps: int, keep_steps: Sequence[int]) -> tuple[int, ...]:
    """The numbers of updates at which to evaluate, the last one included.

    Raises:
        RecipeError: no step, or weights to be kept that never are.
    """
    if steps < 1 or (isinstance(every, int) and every < 1):
        raise RecipeError(f"{steps} steps, evaluated every {every}: nothing to train; take at least 1")
    if any(not 0 <= step <= steps for step in keep_steps):
        raise RecipeError(f"keep_steps {tuple(keep_steps)}: a run of {steps} steps has 0 to {steps}; take those")
    at = range(every, steps, every) if isinstance(every, int) else every
    return tuple(sorted({number for number in (*at, *keep_steps) if 0 < number < steps} | {steps}))


def _check(
    survey: Survey, replicas: Sequence[Replica], plan: Plan, widths: Sequence[int], schedules: Sequence[Schedule]
) -> None:
    steps = plan.evaluations[-1]
    if not replicas or min(widths, default=1) < 1:
        raise RecipeError(
            f"{len(replicas)} replicas of widths {tuple(widths)} cannot be trained; take at least 1 of each"
        )
    for number in {plan.batch_size(step) for step in range(steps)}:
        if not isinstance(number, int) or not 1 <= number <= len(survey):
            raise RecipeError(f"a batch of {number} from {len(survey)} training images; take 1 to {len(survey)}")
    for replica in replicas:
        if not 0 < replica.learning_rate < float("inf"):
            raise RecipeError(f"learning rate {replica.learning_rate}; it must be finite and greater than 0")
    for schedule in set(schedules):
        check_run(schedule, steps)


def _constant(step: int) -> float:
    return 1.0
