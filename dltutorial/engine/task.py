"""What is trained: a model, its data, a loss and a validation. The training loop knows no more of a science case."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from dltutorial import machine
from dltutorial.engine.recipe import Recipe
from dltutorial.errors import CourseError

Batch = tuple[Tensor, ...]
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Task:
    """One thing to train.

    Attributes:
        model: with its initial weights, on the device that it is to be trained on.
        data: ``data(skip)`` gives one batch after another, without end and without the first ``skip``: tuples of
            tensors, of several ranks this rank's part of each batch. It refuses at once what cannot be.
        loss: ``loss(model, *batch)`` is what is to become small: a scalar tensor.
        metrics: ``metrics(model)`` are named scores on other data; all ranks call it and get the same.
        data_id: differs between data sets, so that no run goes on with other data than it began with.
        check_data: raises a DataError if the data hold what no loss survives, such as NaN. It may take long.
    """

    model: nn.Module
    data: Callable[[int], Iterable[Batch]]
    loss: Callable[..., Tensor]
    metrics: Callable[[nn.Module], Mapping[str, float]] | None = None
    data_id: str = ""
    check_data: Callable[[], object] = lambda: None

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        return next(self.model.parameters()).device


def seeded(make: Callable[[], Network], recipe: Recipe) -> Network:
    """The network with the initial weights of the recipe's seed, on its device. CourseError: there is no such one."""
    device = machine.device() if recipe.device == "auto" else recipe.device
    if device == "cuda" and not torch.cuda.is_available():
        raise CourseError("device cuda was asked for, but torch sees no CUDA device here; use device=auto")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return make().to(device)
