"""The ranks that train one model together: what they share, and what they agree on.

In: torch's default process group, made by ``launch`` or from the environment of torchrun or srun. Out: values that are
the same on all ranks. A process without a group is a rank alone: it is rank 0 of 1, and every call returns at once.
All ranks call each function, in the same order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dltutorial.engine.recipe import RankRecipe
from dltutorial.errors import CourseError
from dltutorial.parallel.ddp import BucketedDDP, NaiveDDP, OverlappedDDP


class AnotherRankFailed(CourseError):
    """This rank has nothing to say: another one has failed, and says why."""


def world_size() -> int:
    """How many ranks there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This rank's number."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this is the rank that writes files and prints."""
    return rank() == 0


def data_world_size(recipe: RankRecipe) -> int:
    """In how many parts a batch is cut."""
    return world_size() // recipe.ranks_per_sample


def data_rank(recipe: RankRecipe) -> int:
    """Which part of a batch is this rank's: of ranks next to each other the same, and of the stages of a pipeline."""
    return rank() % (world_size() // recipe.pipeline) // (recipe.context * recipe.tensor)


def tells_of_data(recipe: RankRecipe) -> bool:
    """Whether this rank is the first one with its part of a batch."""
    return rank() == data_rank(recipe) * recipe.context * recipe.tensor


def wrap_ddp(model: nn.Module, kind: str = "torch", group: dist.ProcessGroup | None = None) -> nn.Module:
    """The model for several ranks: rank 0's weights now, and after each backward pass the mean of all gradients.

    Args:
        model: the same on all ranks.
        kind: torch, for ``DistributedDataParallel``; overlapped, bucketed, naive of ``parallel.ddp``; late for ``lag``.
        group: of these ranks; default: all.
    """
    if kind == "late" or world_size() == 1 or dist.get_world_size(group) == 1:
        return model
    own = {"overlapped": OverlappedDDP, "bucketed": BucketedDDP, "naive": NaiveDDP}
    return own.get(kind, DistributedDataParallel)(model, process_group=group)


def mean_over_ranks(values: Tensor) -> Tensor:
    """Means, value by value. In float64 sums of float32 are exact, so means of equal values do not change."""
    return values if world_size() == 1 else (sum_over_ranks(values.double()) / world_size()).to(values.dtype)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sums, value by value."""
    total = values.clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total


def broadcast_object(value: Any = None) -> Any:
    """What rank 0 says."""
    box = [value]
    if world_size() > 1:
        dist.broadcast_object_list(box, 0)
    return box[0]


def gather_objects(value: Any) -> list[Any]:
    """What every rank has, by rank."""
    found = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(found, value)
    return found


def barrier() -> None:
    """Wait until every rank has come here."""
    gather_objects(None)


class StopFlag:
    """Whether any rank was asked to end, as all ranks agree: each calls this once after every update.

    On several ranks the answer to a call comes with the next one. It travels meanwhile, and nobody waits for it.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked
        self._under_way: tuple[dist.Work, Tensor] | None = None

    def __call__(self) -> bool:
        """Whether all ranks end here."""
        if world_size() == 1:
            return self._asked()
        where = "cpu" if "cpu:" in dist.get_backend_config() else "cuda"  # on the host nobody waits for a GPU
        before, flag = self._under_way, torch.tensor(float(self._asked()), device=where)
        self._under_way = dist.all_reduce(flag, dist.ReduceOp.MAX, async_op=True), flag
        if before is None:
            return False
        before[0].wait()
        return bool(before[1])


@contextmanager
def all_or_none() -> Iterator[None]:
    """What is done inside succeeds on all ranks, or raises on all: none goes on alone, to wait for ever.

    Inside, no rank may wait for another.

    Raises:
        AnotherRankFailed: it succeeded here; or the same or another error is told by a rank before this one.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as found:
        error = found
    told = gather_objects(error and str(error))
    first = next((number for number, text in enumerate(told) if text is not None), None)
    if first == rank() and error is not None:
        raise error
    if first is not None:
        raise AnotherRankFailed(f"rank {first} of {world_size()}: {told[first]}") from error
