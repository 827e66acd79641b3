"""The training loop: batches in, records out.

It is a generator, so whoever runs it (a notebook, the command line, a test) decides what to do with each record:
plot it, log it, stop early.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from dltutorial.config import Recipe
from dltutorial.errors import CourseError
from dltutorial.observe.ranges import annotate
from dltutorial.training.optim import make_optimizer, set_learning_rate
from dltutorial.training.schedules import cosine_with_warmup
from dltutorial.training.step import make_step


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
) -> Iterator[Progress]:
    """Train ``model`` for ``recipe.steps`` updates, yielding a record every ``recipe.log_every``.

    Args:
        model: on the device it is to be trained on.
        batches: pairs (x_BCHW, y_BCHW) on any device, at least ``recipe.steps`` of them.
        recipe: the knobs.
        evaluate: called every ``recipe.eval_every`` updates and after the last one.

    Raises:
        CourseError: the loss is no longer finite, the batches ran out, or this machine lacks what the recipe asks for.
    """
    device = next(model.parameters()).device
    optimizer = make_optimizer(model, recipe)
    update = make_step(model, optimizer, recipe)
    losses: list[Tensor] = []
    start = time.perf_counter()
    step = 0
    for step, (x_BCHW, y_BCHW) in enumerate(_loaded(islice(batches, recipe.steps)), 1):
        rate = recipe.learning_rate * cosine_with_warmup(step - 1, recipe)
        set_learning_rate(optimizer, rate)
        with annotate("to device"):
            x_BCHW, y_BCHW = x_BCHW.to(device, non_blocking=True), y_BCHW.to(device, non_blocking=True)
        losses.append(update(x_BCHW, y_BCHW))
        last = step == recipe.steps
        judge = evaluate and (last or (recipe.eval_every and step % recipe.eval_every == 0))
        if not (last or judge or step % recipe.log_every == 0):
            continue
        loss = torch.stack(losses).mean().item()  # the only place that waits for the device
        step_s = (time.perf_counter() - start) / len(losses)
        if not torch.isfinite(torch.tensor(loss)):
            raise CourseError(f"the loss is {loss} after {step} updates; lower learning_rate or raise warmup_steps")
        scores = evaluate(model) if judge else {}
        yield Progress(step, loss, rate, step_s, x_BCHW.shape[0] / step_s, scores)
        losses, start = [], time.perf_counter()
    if step < recipe.steps:
        raise CourseError(f"the batches ran out after {step} of {recipe.steps} updates; give an endless iterator")


@annotate("load")
def _loaded(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches as they are; in a trace, the wait for each one shows as a range."""
    yield from batches
