"""Checks of the first part of chapter 17's exercise: an optimizer whose tensors are distributed over the ranks.

The answer runs on two and on three ranks. Its function ``deal`` gives each tensor an owner. Its ``step`` updates each
tensor on the owner and sends the result to all ranks. The checks compare the largest load of a rank, the weights after
each step with those of one process that averages the gradients of all ranks, and the bytes that a step communicates.

Source: https://docs.pytorch.org/docs/stable/distributed.html
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.rank_harness import (
    CommunicationRecorder,
    Message,
    expect_close_on_ranks,
    run_on_ranks,
)

Sizes = tuple[int, ...]

_SIZES = (2, 6, 3, 5, 4)
_FEW_SIZES = (3, 2)
_WITHOUT_GRADIENT = {(1, 1), (3, 1), (4, 1), (0, 0), (2, 0)}  # (tensor, rank); some of these ranks own the tensor
_NEVER_USED = (1, 1)  # (step, tensor); momentum updates this tensor although no rank has a gradient
_STEPS = 3
_LEARNING_RATE = 0.1
_SENDS_OF_KIND = {"allreduce": 2, "allreduce_coalesced": 2}  # how often the bytes are sent; once for all other kinds
_LARGEST_LOADS = (  # sizes of the tensors, number of ranks, numbers on the rank that has most
    ((6, 5, 4, 3, 2), 2, 11),
    ((2, 6, 3, 5, 4), 2, 11),
    ((1, 1, 1, 9, 3), 3, 9),
    ((4,), 2, 4),
    ((6, 5, 4, 3, 2), 3, 8),
    ((10, 1, 1, 1, 1), 2, 10),
    ((3, 3, 3, 3), 2, 6),
)
_UNSORTED = (
    "A large tensor came late, when all ranks had many numbers already. Give out the largest tensor first, and always "
    "to the rank that has least."
)
_SORTED_ORDER = "These are the owners in the order of the sorted sizes. Return them in the order of `sizes`."
_DIFFER = "The weights differ between the ranks. Each owner must send its updated tensors to all other ranks."
_UNCHANGED = "Some tensors did not change on any rank. Each owner must send its updated tensors to all other ranks."
_SUMMED = "The gradients were added, but not averaged. Divide by the number of ranks."
_TOO_EARLY = "These are the weights before the update. Send them after the update."
_USED_ONLY = (
    "A gradient that is None counts as zero. Divide by the number of all ranks, also of those without a gradient."
)
_MEAN_FIRST = "Each owner needs the mean of all ranks' gradients before its optimizer makes a step."
_ALL_REDUCE = "An all-reduce gives the sum to all ranks, but only the owner needs it. Use dist.reduce."


def _make_parameters(sizes: Sizes) -> list[nn.Parameter]:
    """Return the same random parameters on every rank."""
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(n, generator=generator)) for n in sizes]


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([parameter.detach() for parameter in parameters])


def _gradient(step: int, rank: int, index: int, size: int, unused: bool) -> Tensor | None:
    """Return a tensor's gradient on a rank, or None where ``unused`` says that some gradients are missing."""
    if unused and ((index, rank) in _WITHOUT_GRADIENT or (step, index) == _NEVER_USED):
        return None
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * step + 10 * rank + index))


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=0.9)


def _train_on_rank(fn: Callable, sizes: Sizes, unused: bool) -> tuple[list[Tensor], list[Message]]:
    """Return the weights after each step and the messages of the last step."""
    parameters = _make_parameters(sizes)
    frozen = nn.Parameter(torch.ones(4), requires_grad=False)
    optimizer = fn([*parameters, frozen], _sgd)
    weights_after = []
    for step in range(_STEPS):
        for index, parameter in enumerate(parameters):
            parameter.grad = _gradient(step, dist.get_rank(), index, parameter.numel(), unused)
        with CommunicationRecorder() as recorder:
            optimizer.step()
        weights_after.append(_flat(parameters))
    return weights_after, recorder.messages


def _train_in_one_process(world_size: int, sizes: Sizes, unused: bool, reduction: str) -> list[Tensor]:
    """Return the weights after each step of one process that knows the gradients of all ranks.

    Args:
        world_size: The number of ranks.
        sizes: The sizes of the tensors.
        unused: Whether some gradients are missing.
        reduction: "mean" over all ranks, "sum", or "mean of used", which leaves out the ranks without a gradient.
    """
    parameters = _make_parameters(sizes)
    optimizer = _sgd(parameters)
    weights_after = []
    for step in range(_STEPS):
        for index, parameter in enumerate(parameters):
            on_ranks = [_gradient(step, rank, index, parameter.numel(), unused) for rank in range(world_size)]
            used = [gradient for gradient in on_ranks if gradient is not None]
            total = torch.stack(used).sum(0) if used else torch.zeros_like(parameter)
            divisor = {"mean": world_size, "sum": 1, "mean of used": max(1, len(used))}[reduction]
            parameter.grad = total / divisor
        optimizer.step()
        weights_after.append(_flat(parameters))
    return weights_after


def _check_owners(fn: Any) -> None:
    """Each tensor has one owner, and no rank owns more numbers than necessary"""
    for sizes, world_size, largest_load in _LARGEST_LOADS:
        owners = fn.deal(list(sizes), world_size)
        if not isinstance(owners, (list, tuple)) or len(owners) != len(sizes):
            hint = "" if owners is None else "Return one rank for each size, in the order of the sizes."
            raise Wrong(f"{len(sizes)} owners", owners, hint)
        if not all(isinstance(owner, int) and 0 <= owner < world_size for owner in owners):
            raise Wrong(
                f"ranks from 0 to {world_size - 1}", owners, "An owner is a rank, so it is a number from 0 to n - 1."
            )
        loads = _loads(sizes, owners, world_size)
        if max(loads) > largest_load:
            largest_first = sorted(sizes, reverse=True)
            is_sorted_order = max(_loads(largest_first, owners, world_size)) <= largest_load
            hint = _SORTED_ORDER if is_sorted_order else _UNSORTED
            raise Wrong(f"at most {largest_load} numbers on a rank, for sizes {sizes}", loads, hint)


def _loads(sizes: Sequence[int], owners: Sequence[int], world_size: int) -> list[int]:
    """Return how many numbers each rank owns."""
    loads = [0] * world_size
    for size, owner in zip(sizes, owners, strict=True):
        loads[owner] += size
    return loads


def _check_weights(fn: Callable, world_size: int = 2, unused: bool = False, sizes: Sizes = _SIZES) -> None:
    """All ranks must have the weights of one process after each step."""
    results = run_on_ranks(_train_on_rank, world_size, fn, sizes, unused)
    expected, summed, mean_of_used = (
        _train_in_one_process(world_size, sizes, unused, reduction) for reduction in ("mean", "sum", "mean of used")
    )
    initial = _flat(_make_parameters(sizes))
    for step in range(_STEPS):
        on_ranks = [weights_after[step] for weights_after, _ in results]
        _check_all_updated(on_ranks, initial, sizes, step)
        before = expected[step - 1] if step else initial
        mistakes = [(summed[step], _SUMMED), (before, _TOO_EARLY), (mean_of_used[step], _USED_ONLY)]
        expect_close_on_ranks(
            on_ranks, [expected[step]] * world_size, _MEAN_FIRST, [mistakes] * world_size, rtol=1e-4, atol=1e-6
        )


def _check_all_updated(on_ranks: list[Tensor], initial: Tensor, sizes: Sizes, step: int) -> None:
    """The weights must be the same on all ranks, and every tensor must have changed."""
    first = on_ranks[0]
    if any(not torch.equal(first, weights) for weights in on_ranks) and torch.allclose(first, initial):
        raise Wrong(
            "an update on all ranks",
            "the weights of rank 0 did not change",
            "Each rank updates the tensors that it owns.",
        )
    if any(not torch.allclose(first, weights) for weights in on_ranks):
        raise Wrong("the same weights on all ranks", f"not so after step {step + 1}", _DIFFER)
    tensors = zip(first.split(sizes), initial.split(sizes), strict=True)
    unchanged = [torch.equal(now, before) for now, before in tensors]
    if any(unchanged) and not all(unchanged):
        raise Wrong("all tensors updated", f"{sum(unchanged)} of {len(unchanged)} are not", _UNCHANGED)


def _check_bytes(fn: Callable) -> None:
    """A step sends each gradient to one rank, and each updated tensor from one rank"""
    most_bytes = 2 * sum(_SIZES) * torch.float32.itemsize
    for _, messages in run_on_ranks(_train_on_rank, 2, fn, _SIZES, False):
        sent_bytes = sum(_SENDS_OF_KIND.get(message.kind, 1) * message.n_bytes for message in messages)
        if sent_bytes > most_bytes:
            kinds = sorted({message.kind for message in messages})
            hint = "Some collective gives all ranks what only one rank needs."
            if any(kind.startswith("allreduce") for kind in kinds):
                hint = _ALL_REDUCE
            raise Wrong(f"at most {most_bytes} bytes", f"{sent_bytes}: {kinds}", hint)


EXERCISE = Exercise(
    name="dealt",
    chapter="17",
    cases=(
        _check_owners,
        case("Two ranks hold the weights of one process after each step", _check_weights),
        _check_bytes,
        case("Three ranks do, too", _check_weights, 3),
        case("Two tensors on three ranks, where one rank owns nothing", _check_weights, 3, sizes=_FEW_SIZES),
        case(
            "A gradient that is None counts as zero, also if it is None on all ranks",
            _check_weights,
            unused=True,
        ),
    ),
    hints=(
        "Which rank needs the mean gradient of a tensor? Which ranks need the tensor after its update?",
        "All ranks must call the same collectives in the same order, even if a rank has no gradient.",
        "dist.reduce has one receiver, and dist.broadcast has one sender. In both cases, this rank is the owner.",
    ),
    deadline_s=180.0,
)
