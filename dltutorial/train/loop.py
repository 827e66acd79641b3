"""The training loop: batches in, records out.

It is a generator, so whoever runs it (a notebook, the command line, a test) decides what to do with each record:
plot it, log it, stop early.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from dltutorial import node
from dltutorial.config import Recipe
from dltutorial.errors import CourseError, DataError, DivergedError
from dltutorial.profile.ranges import annotate
from dltutorial.train import checkpoint
from dltutorial.train.checkpoint import Checkpoint
from dltutorial.train.optim import make_optimizer, set_learning_rate
from dltutorial.train.precision import Precision
from dltutorial.train.resume import Keeper
from dltutorial.train.schedules import cosine_with_warmup
from dltutorial.train.step import make_step
from dltutorial.train.team import ALONE, Team


@dataclass(frozen=True)
class Progress:
    """What happened over the last few updates.

    Attributes:
        step: updates made so far.
        loss: mean training loss since the last record.
        learning_rate: of the last update.
        step_s: mean seconds of an update, validation not counted.
        samples_per_s: training throughput over the same updates.
        scores: what ``evaluate`` returned, if it was its turn.
    """

    step: int
    loss: float
    learning_rate: float
    step_s: float
    samples_per_s: float
    scores: dict[str, float] = field(default_factory=dict)


def loop(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    recipe: Recipe,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    *,
    begun: Checkpoint | None = None,
    keeper: Keeper | None = None,
    team: Team = ALONE,
) -> Iterator[Progress]:
    """Train ``model`` up to update ``recipe.steps``, yielding a record every ``recipe.log_every``.

    Args:
        model: on the device it is to be trained on; shared by the team.
        batches: pairs (x_BCHW, y_BCHW) on any device, one for each update that is left: this rank's part of each.
        recipe: the knobs.
        evaluate: called every ``recipe.eval_every`` updates and after the last one.
        begun: go on from here; ``batches`` start after those that it has seen.
        keeper: writes the checkpoints, each after the record of the same update was taken; default: none is written.
        team: the ranks that train this model together; default: this one alone.

    Raises:
        Interrupted: the keeper was asked to end the run, and has written a checkpoint.
        CourseError: the loss is no longer finite, the batches ran out, or this machine cannot, or may not, train.
    """
    node.refuse_on_login("training")
    device = next(model.parameters()).device
    optimizer, precision = make_optimizer(model, recipe), Precision(recipe.precision, device.type)
    update = make_step(model, optimizer, recipe, precision)
    done, losses, scores = _begin(begun, model, optimizer, precision)
    step, untimed, start = done, len(losses), time.perf_counter()

    def state() -> Checkpoint:
        return checkpoint.take(recipe, step, model, optimizer, precision.scaler, _means(losses, team), scores)

    for step, (x_BCHW, y_BCHW) in enumerate(_loaded(islice(batches, recipe.steps - done), keeper), done + 1):
        rate = recipe.learning_rate * cosine_with_warmup(step - 1, recipe)
        set_learning_rate(optimizer, rate)
        with annotate("to device"):
            x_BCHW, y_BCHW = x_BCHW.to(device, non_blocking=True), y_BCHW.to(device, non_blocking=True)
        losses.append(update(x_BCHW, y_BCHW))
        last = step == recipe.steps
        judge = evaluate and (last or (recipe.eval_every and step % recipe.eval_every == 0))
        if last or judge or step % recipe.log_every == 0:
            loss = torch.stack(_means(losses, team)).mean().item()  # the only place that waits for the device
            step_s = (time.perf_counter() - start) / (len(losses) - untimed)
            _check_finite(loss, step)
            judged = evaluate(model) if judge else {}
            scores = judged or scores
            yield Progress(step, loss, rate, step_s, team.world_size * x_BCHW.shape[0] / step_s, judged)
            losses, untimed, start = [], 0, time.perf_counter()
        if keeper and not last and keeper.due(step):
            taken, before = state(), time.perf_counter()  # taking it waits for the device
            _check_finite(taken.losses_N.sum().item(), step)
            keeper.write(taken)
            start += time.perf_counter() - before
    if step < recipe.steps:
        if keeper and keeper.can_end_here():
            keeper.write(state())
        raise CourseError(f"the batches ran out after {step} of {recipe.steps} updates; give an endless iterator")


def _begin(
    begun: Checkpoint | None, model: nn.Module, optimizer: torch.optim.Optimizer, precision: Precision
) -> tuple[int, list[Tensor], dict]:
    """Updates made, losses since the last record, and the last scores: of a checkpoint, or of a new run."""
    if not begun:
        return 0, [], {}
    checkpoint.restore(begun, model, optimizer, precision.scaler)
    return begun.step, list(begun.losses_N.to(next(model.parameters()).device)), begun.scores


def _means(losses: list[Tensor], team: Team) -> list[Tensor]:
    """The losses over the whole batch, not this rank's part; those of a checkpoint are that already."""
    return list(team.mean(torch.stack(losses))) if losses else []


def _check_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise DivergedError(f"the loss is {loss} after {step} updates; lower learning_rate or raise warmup_steps")


@annotate("load")
def _loaded(batches: Iterable[tuple[Tensor, Tensor]], keeper: Keeper | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches as they are; in a trace, the wait for each one shows as a range.

    Raises:
        DataError: the batches do, unless the run was asked to end: the same signal may have ended their processes.
    """
    try:
        yield from batches
    except DataError:
        if not (keeper and keeper.can_end_here()):
            raise
