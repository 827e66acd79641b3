"""Checks of the first part of chapter 18's exercise: an MLP whose hidden features are sharded over the ranks.

Every rank calls the answer with the same complete weights. The output must be that of one process on every rank. The
gradients of the weights must be correct in the shard of the rank, and zero elsewhere. The checks also compare the
messages of the forward and of the backward pass.

Legend: N samples, D features of input and output, H hidden features.

Source: Shoeybi et al. 2019, arXiv:1909.08053
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.rank_harness import (
    CommunicationRecorder,
    Message,
    Mistakes,
    RankError,
    expect_close_on_ranks,
    run_on_ranks,
)

_N = 5
_D = 6
_H = 12
_NAMES = ("x", "up", "up's bias", "down", "down's bias")
_SHARDED = (1, 2, 3)  # the positions of the sharded weights among the names
_DOWN = 3
_NOTHING = "Nothing was sent. Use this rank's shard of the hidden values, and sum the results of all ranks."
_PARTIAL_SUM = "This is only the partial sum of this rank. An all-reduce must sum the results of all ranks."
_BIAS = "The last bias was added once for each rank. Add it after the sum."
_HIDDEN = "A shard of the hidden values is a shard of up's rows, of its bias and of down's columns: the same shard."
_PARTIAL_GRADIENT = (
    "This is the gradient through the hidden values of this rank only. The backward pass must sum it over all ranks."
)
_TIMES = "This is too large by the number of ranks. After the sum, each rank has the complete gradient: send nothing."
_OTHERS = "This contains what other ranks should compute. Use only this rank's shard of the hidden values."
_ORDER = "These are correct numbers of another rank. The shards are in the order of the ranks, as in tensor.chunk."
_SHARE = "This is the mean over the ranks. Each rank has a partial sum of the gradient, so the ranks must sum them."
_STOPS = "The gradient stops, because autograd knows no collectives. Write an autograd.Function around each of them."
_DETACHED = "x has a gradient, but this weight has none on this rank. Use its shard without detaching it."
_LAST_UNUSED = (
    "This rank has not used the last bias. All ranks have all of it, and each rank adds it once, after the sum."
)
_TWO_MESSAGES = (
    "Use one all-reduce of N x D values forward, for the result, and one backward, for x. Send no more than that."
)


class _Result(NamedTuple):
    """What the answer gives on one rank: output, gradients in the order of ``_NAMES``, and messages."""

    y: Any
    gradients: list[Tensor | None]
    forward: list[Message]
    backward: list[Message]


def _inputs() -> tuple[list[Tensor], Tensor]:
    """Return the five arguments, the same on all ranks, and the gradient of the loss with respect to the output."""
    generator = torch.Generator().manual_seed(4)
    shapes = (_N, _D), (_H, _D), (_H,), (_D, _H), (_D,)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    return tensors, torch.randn(_N, _D, generator=generator, dtype=torch.float64)


def _mlp(x_ND: Tensor, up_HD: Tensor, bias_H: Tensor, down_DH: Tensor, last_D: Tensor) -> Tensor:
    """Return the output of the MLP in one process."""
    return F.linear(F.gelu(F.linear(x_ND, up_HD, bias_H)), down_DH, last_D)


def _shard_of(rank: int, world_size: int) -> slice:
    """Return the hidden features of a rank."""
    return slice(rank * _H // world_size, (rank + 1) * _H // world_size)


def _partial_mlp(inputs: list[Tensor], shard: slice) -> Tensor:
    """Return the part of the output that comes from these hidden features, without the last bias."""
    x_ND, up_HD, bias_H, down_DH, last_D = inputs
    return _mlp(x_ND, up_HD[shard], bias_H[shard], down_DH[:, shard], torch.zeros_like(last_D))


def _train_on_rank(fn: Callable, with_backward: bool) -> _Result:
    """Run the answer forward and, where it has a graph, backward."""
    warnings.filterwarnings("ignore")  # torch warns of a collective inside the graph; the hint says more
    inputs, y_gradient = _inputs()
    with CommunicationRecorder() as forward:
        y = fn(*inputs)
    if not isinstance(y, Tensor):
        return _Result(y, [], [], [])
    output = y.detach().clone()
    with CommunicationRecorder() as backward:
        if with_backward and y.requires_grad and y.shape == y_gradient.shape:
            y.backward(y_gradient)
    return _Result(output, [tensor.grad for tensor in inputs], forward.messages, backward.messages)


def _run(fn: Callable, world_size: int, with_backward: bool = True) -> list[_Result]:
    """Return the results of all ranks. Shapes that do not match come from shards that do not match."""
    try:
        return run_on_ranks(_train_on_rank, world_size, fn, with_backward)
    except RankError as error:
        if "gradient" not in error.got and ("shape" in error.got or "size" in error.got):
            error.hint = _HIDDEN
        raise


def _check_output(fn: Callable, world_size: int) -> None:
    """The output must be that of one process on every rank."""
    outputs = [result.y for result in _run(fn, world_size, with_backward=False)]
    inputs = [tensor.detach() for tensor in _inputs()[0]]
    last_D = inputs[-1]
    expected = _mlp(*inputs)
    mistakes: list[Mistakes] = []
    for rank in range(world_size):
        part = _partial_mlp(inputs, _shard_of(rank, world_size))
        mistakes.append(
            [
                (part, _PARTIAL_SUM),
                (part + last_D, _PARTIAL_SUM),
                (expected + (world_size - 1) * last_D, _BIAS),
                (expected - last_D, "The last bias is missing."),
                (expected / world_size, "This is the mean over the ranks. The result is their sum."),
                (world_size * expected, _OTHERS),
            ]
        )
    expect_close_on_ranks(outputs, [expected] * world_size, _HIDDEN, mistakes)


def _check_gradients(fn: Callable, world_size: int, positions: range) -> None:
    """The gradients of the arguments at these positions must be correct on every rank."""
    results = _run(fn, world_size)
    inputs, y_gradient = _inputs()
    _mlp(*inputs).backward(y_gradient)
    for position in positions:
        gradients = [result.gradients[position] if result.gradients else None for result in results]
        for rank, gradient in enumerate(gradients):
            if gradient is None:
                expected_text = f"a gradient of {_NAMES[position]} on rank {rank} of {world_size}"
                raise Wrong(expected_text, None, _hint_for_missing(position))
        complete = inputs[position].grad
        assert complete is not None
        compare = _compare_sharded if position in _SHARDED else _compare_complete
        compare(gradients, complete, position)


def _hint_for_missing(position: int) -> str:
    """Return the hint for an argument without a gradient."""
    if position == 0:
        return _STOPS
    return _DETACHED if position in _SHARDED else _LAST_UNUSED


def _compare_sharded(gradients: list[Any], complete: Tensor, position: int) -> None:
    """A sharded weight has the gradient of one process in the rank's shard, and zeros elsewhere."""
    world_size = len(gradients)
    expected = []
    mistakes: list[Mistakes] = []
    for rank in range(world_size):
        shard = _only(complete, _shard_of(rank, world_size), position)
        strided = _only(complete, slice(rank, None, world_size), position)
        expected.append(shard)
        mistakes.append(
            [(complete, _OTHERS), (world_size * shard, _TIMES), (strided, _ORDER), (shard / world_size, _SHARE)]
        )
    hint = f"The gradient of {_NAMES[position]} is wrong."
    expect_close_on_ranks(gradients, expected, hint, mistakes, atol=1e-12)


def _only(complete: Tensor, hidden: slice, position: int) -> Tensor:
    """Return the gradient of some hidden features, and zeros for the others."""
    index = (slice(None), hidden) if position == _DOWN else (hidden,)
    gradient = torch.zeros_like(complete)
    gradient[index] = complete[index]
    return gradient


def _compare_complete(gradients: list[Any], complete: Tensor, position: int) -> None:
    """Every rank has the complete gradient of x, and of the last bias."""
    world_size = len(gradients)
    mistakes: list[Mistakes] = []
    for rank in range(world_size):
        of_rank: list[tuple[Any, str]] = [(world_size * complete, _TIMES), (complete / world_size, _SHARE)]
        if position == 0:
            inputs, y_gradient = _inputs()
            _partial_mlp(inputs, _shard_of(rank, world_size)).backward(y_gradient)
            partial = inputs[0].grad
            assert partial is not None
            of_rank += [(partial, _PARTIAL_GRADIENT), (world_size * partial, _PARTIAL_GRADIENT)]
        mistakes.append(of_rank)
    hint = f"The gradient of {_NAMES[position]} is wrong."
    expect_close_on_ranks(gradients, [complete] * world_size, hint, mistakes, atol=1e-12)


def _check_messages(fn: Callable) -> None:
    """One all-reduce forward, one backward"""
    n_bytes = _N * _D * torch.float64.itemsize
    all_reduce = [Message("allreduce", n_bytes)]
    for rank, result in enumerate(_run(fn, 2)):
        if not result.forward and not result.backward:
            raise Wrong(f"messages of rank {rank}", "none", _NOTHING)
        if result.forward != all_reduce or result.backward != all_reduce:
            messages = [[tuple(message) for message in part] for part in (result.forward, result.backward)]
            raise Wrong(f"an all-reduce of {n_bytes} bytes forward, one backward", f"{messages}", _TWO_MESSAGES)


_HINTS = (
    "Which row of up and which column of down belong to one hidden value? torch.arange(n).chunk(p) divides evenly.",
    "y is the sum of one partial sum per rank. If one partial sum changes a little, how much does y change?",
    "Every rank uses x. Which rank knows which partial sum of the gradient of x?",
)
_CODE = (
    "own = torch.arange(len(up)).chunk(dist.get_world_size())[dist.get_rank()]",
    "class CopyToTensorParallel(torch.autograd.Function): forward returns x.view_as(x), backward an all-reduce of "
    "grad_output",
    "return ReduceFromTensorParallel.apply(F.linear(hidden, down[:, own])) + last",
)
EXERCISE = Exercise(
    name="split_mlp",
    chapter="18",
    cases=(
        case("Two ranks: the result is that of one process", _check_output, 2),
        case("Two ranks: x has its complete gradient", _check_gradients, 2, range(1)),
        case("Two ranks: each weight has its gradient in the shard of the rank", _check_gradients, 2, range(1, 5)),
        _check_messages,
        case("Four ranks: the result", _check_output, 4),
        case("Four ranks: all gradients", _check_gradients, 4, range(5)),
    ),
    hints=_HINTS,
    code=_CODE,
    deadline_s=180.0,
)
