"""The training loop: a task and a recipe in, records out.

It is a generator, so whoever runs it (a notebook, the command line, a test) decides what to do with each record:
plot it, log it, stop early.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from dltutorial import node
from dltutorial.engine.distributed import StopFlag, data_world_size, mean_over_ranks
from dltutorial.engine.lag import LateGradients
from dltutorial.engine.mesh import Mesh
from dltutorial.engine.precision import Precision
from dltutorial.engine.recipe import LoopRecipe
from dltutorial.engine.stages import make_pipelined_step
from dltutorial.engine.step import learning_rate, make_optimizer, make_step, set_learning_rate
from dltutorial.engine.task import Task
from dltutorial.errors import CourseError, DivergedError, Interrupted
from dltutorial.profile.ranges import annotate


@dataclass(frozen=True)
class Progress:
    """What happened over the last few updates.

    Attributes:
        step: updates made so far.
        loss: mean training loss since the last record.
        learning_rate: of the last update.
        step_s: mean seconds of an update, validation not counted.
        samples_per_s: training throughput over the same updates.
        scores: what the task's ``metrics`` returned, if it was their turn.
    """

    step: int
    loss: float
    learning_rate: float
    step_s: float
    samples_per_s: float
    scores: Mapping[str, float] = field(default_factory=dict)


class TrainState:
    """What changes while a run goes on.

    Attributes:
        model, optimizer, precision: the live parts; ``update(*batch)`` moves them on by one step.
        mesh: how the ranks share them.
        step: updates made.
        losses: of the updates since the last record, on the device.
        scores: of the last validation.
    """

    def __init__(self, task: Task, recipe: LoopRecipe) -> None:
        """Begin. All ranks do so at the same time. CourseError: this machine cannot do what the recipe asks for."""
        self.model = task.model
        self.precision = Precision(recipe.precision, task.device.type)
        self.mesh = Mesh(task.model, recipe)
        self.precision.clip = self.mesh.clip
        self.optimizer = self.mesh.share(make_optimizer(task.model, recipe))
        if recipe.gradient_lag:
            self.precision.average = LateGradients(task.model, self.optimizer).swap
        rest = task.loss, self.optimizer, recipe, self.precision
        if self.mesh.stage:
            self.update = make_pipelined_step(self.mesh.model, self.mesh.stage, *rest)
        else:
            self.update = make_step(self.mesh.model, *rest)
        self.step = 0
        self.losses: list[Tensor] = []
        self.scores: Mapping[str, float] = {}


def loop(
    task: Task, recipe: LoopRecipe, state: TrainState | None = None, *,
    save: Callable[[TrainState], object] | None = None, asked_to_end: Callable[[], bool] = lambda: False,
) -> Iterator[Progress]:  # fmt: skip
    """Train up to update ``recipe.steps``, yielding a record every ``recipe.log_every``.

    Args:
        task: what is trained; of several ranks each has its own, with a model of the same shape.
        recipe: the knobs.
        state: go on from here; default: begin.
        save: called every ``recipe.checkpoint_every`` updates, after the record of the same update was taken.
        asked_to_end: looked at after each update; once true on any rank, all save and end after the same update.

    Raises:
        Interrupted: the run was asked to end, and has been saved.
        CourseError: the loss is no longer finite, the batches ran out, or this machine cannot, or may not, train.
    """
    node.refuse_on_login("training")
    state = state or TrainState(task, recipe)
    all_end = StopFlag(asked_to_end)
    batches = islice(task.data(state.step), recipe.steps - state.step)
    untimed, start_s = len(state.losses), time.perf_counter()
    while state.step < recipe.steps:
        with annotate("load"):
            batch = next(batches, None)
        if batch is None:
            raise CourseError(f"no batch after {state.step} of {recipe.steps} updates; give an endless iterator")
        with annotate("to device"):
            batch = tuple(tensor.to(task.device, non_blocking=True) for tensor in batch)
        rate = learning_rate(state.step, recipe)
        set_learning_rate(state.optimizer, rate)
        state.losses.append(state.update(*batch))
        state.step += 1
        last = state.step == recipe.steps
        validates = task.metrics is not None and (last or _is_due(state.step, recipe.eval_every))
        if last or validates or _is_due(state.step, recipe.log_every):
            loss = _mean(state).item()  # the only place that waits for the device
            step_s = max(1e-9, time.perf_counter() - start_s) / (len(state.losses) - untimed)  # some clocks stand
            _check_finite(state.step, loss, {})
            scores = task.metrics(task.model) if task.metrics and validates else {}
            _check_finite(state.step, loss, scores)
            state.scores = scores or state.scores
            yield Progress(state.step, loss, rate, step_s, data_world_size(recipe) * len(batch[0]) / step_s, scores)
            state.losses, untimed, start_s = [], 0, time.perf_counter()
        ends = not last and all_end()
        if save and (ends or (not last and _is_due(state.step, recipe.checkpoint_every))):
            before_s = time.perf_counter()
            if state.losses:
                _check_finite(state.step, _mean(state).item(), {})
            save(state)
            start_s += time.perf_counter() - before_s
        if ends:
            raise Interrupted(f"asked to end after {state.step} updates; a checkpoint is written, go on with --resume")


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _mean(state: TrainState) -> Tensor:
    """The mean loss since the last record. From here on the losses are those of the whole batch, on every rank."""
    losses_N = mean_over_ranks(torch.stack(state.losses))
    state.losses = list(losses_N)
    return losses_N.mean()


def _check_finite(step: int, loss: float, scores: Mapping[str, float]) -> None:
    if not math.isfinite(loss):
        raise DivergedError(f"the loss is {loss} after {step} updates; lower learning_rate or raise warmup_steps")
    if not all(map(math.isfinite, scores.values())):
        raise DivergedError(f"scores are not finite after {step} updates; lower learning_rate, or leave out constants")
