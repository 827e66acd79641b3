"""Checks of the second part of chapter 17's exercise: a layer whose weight is sharded over the ranks.

The answer is an autograd function. Each rank has its own samples x and its shard, some rows, of the weight W. The
forward pass gathers W for a moment and returns ``x @ W.T``. The backward pass gathers W again. The checks compare the
output and the gradients with those of one process that has the complete W. They also compare the messages, and look
for tensors of W's shape that are alive between the passes.

Source: Rajbhandari et al. 2020, arXiv:1910.02054
"""

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.rank_harness import (
    CommunicationRecorder,
    Mistakes,
    expect_close_on_ranks,
    run_on_ranks,
)

_ROWS_PER_RANK = 3
_WIDTH = 5
_CLOSE = {"rtol": 1e-3, "atol": 1e-5}
_RELEASE_S = 1.0  # a thread of gloo may hold a tensor that it has sent for so long
_SUMMED = "This is the sum over the ranks. Divide it by the number of ranks."
_OWN = "These gradients come from this rank's samples alone. Take the mean over all ranks."
_OWN_DIVIDED = "These gradients come from this rank's samples alone. Add the gradients of all ranks."
_ROWS_HINT = "The gradient of W is the transposed upstream gradient times x. Add it over the ranks, and take your rows."
_SAVED = "The complete W was saved for the backward pass. Keep the rows, and gather again."
_ALIVE = "A tensor with the shape of W is there between the passes. Save nothing of W except your rows."
_ALL_REDUCE = "An all-reduce gives all rows to each rank, but a rank needs only its own rows. Use reduce_scatter."


class _Inputs(NamedTuple):
    """The samples of a rank, the complete weight, and the gradient of the loss with respect to the output y."""

    x: Tensor
    weight: Tensor
    y_gradient: Tensor


def _inputs(rank: int, world_size: int, leading: tuple[int, ...]) -> _Inputs:
    """Return inputs with the same weight but different samples on each rank; x has the shape (*leading, width)."""
    n_rows = world_size * _ROWS_PER_RANK
    weight = torch.randn(n_rows, _WIDTH, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(10 + rank)
    x = torch.randn(*leading, _WIDTH, generator=generator)
    return _Inputs(x, weight, torch.randn(*leading, n_rows, generator=generator))


def _forward_on_rank(fn: Any) -> Any:
    """Return the output of the answer."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, weight, _ = _inputs(rank, world_size, (4,))
    y = fn.apply(x.requires_grad_(), weight.chunk(world_size)[rank].clone().requires_grad_())
    return y.detach() if isinstance(y, Tensor) else y


def _train_on_rank(fn: Any, leading: tuple[int, ...], n_passes: int) -> dict[str, Any]:
    """Return gradients after some forward and backward passes, and what the last of them stored and communicated."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x, weight, y_gradient = _inputs(rank, world_size, leading)
    x.requires_grad_()
    rows = weight.chunk(world_size)[rank].clone().requires_grad_()
    weight_shapes = {weight.shape, weight.shape[::-1]}
    del weight
    saved_shapes: set[torch.Size] = set()

    def pack(tensor: Tensor) -> Tensor:
        saved_shapes.add(tensor.shape)
        return tensor

    for _ in range(n_passes):
        with CommunicationRecorder() as forward, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = fn.apply(x, rows)
        stores_weight = bool(weight_shapes & saved_shapes) or _is_any_alive(weight_shapes)
        with CommunicationRecorder() as backward:
            (y * y_gradient).sum().backward()
    return {
        "x": x.grad,
        "rows": rows.grad,
        "stores_weight": stores_weight,
        "forward": [message.kind for message in forward.messages],
        "backward": [message.kind for message in backward.messages],
    }


def _is_any_alive(shapes: set[torch.Size]) -> bool:
    """Return whether a tensor of one of these shapes stays in memory for longer than gloo may hold it."""
    deadline_s = time.monotonic() + _RELEASE_S
    while time.monotonic() < deadline_s:
        if not any(isinstance(item, Tensor) and item.shape in shapes for item in gc.get_objects()):
            return False
        time.sleep(0.02)
    return True


def _weight_gradient(rank: int, world_size: int, leading: tuple[int, ...]) -> Tensor:
    """Return the gradient of the complete weight from the samples of one rank."""
    x, _, y_gradient = _inputs(rank, world_size, leading)
    return y_gradient.flatten(0, -2).T @ x.flatten(0, -2)


def _check_output(fn: Callable) -> None:
    """The forward pass returns x Wᵀ with the complete W"""
    world_size = 2
    inputs = [_inputs(rank, world_size, (4,)) for rank in range(world_size)]
    expected = [x @ weight.T for x, weight, _ in inputs]
    outputs = run_on_ranks(_forward_on_rank, world_size, fn)
    expect_close_on_ranks(outputs, expected, "y is x @ W.T, where W has the rows of all ranks.", **_CLOSE)


def _check_gradients(
    fn: Callable, world_size: int = 2, shapes: tuple[tuple[int, ...], ...] = ((4,),), n_passes: int = 1
) -> None:
    """The gradient of x is this rank's own, and the gradient of the rows is the mean over the ranks."""
    for leading in shapes:
        results = run_on_ranks(_train_on_rank, world_size, fn, leading, n_passes)
        for name in ("x", "rows"):
            if any(result[name] is None for result in results):
                raise Wrong(f"a gradient of {name}", None, "backward returns one gradient for x and one for the rows.")
        _compare_gradients(results, leading, n_passes)


def _compare_gradients(results: list[dict[str, Any]], leading: tuple[int, ...], n_passes: int) -> None:
    """Compare the gradients of all ranks after ``n_passes`` passes, over which gradients add up."""
    world_size = len(results)
    inputs = [_inputs(rank, world_size, leading) for rank in range(world_size)]
    expected_x = [n_passes * (y_gradient @ weight) for _, weight, y_gradient in inputs]
    hint = "The gradient of x is the upstream gradient times the complete W."
    expect_close_on_ranks([result["x"] for result in results], expected_x, hint, **_CLOSE)

    own = [n_passes * _weight_gradient(rank, world_size, leading) for rank in range(world_size)]
    summed = torch.stack(own).sum(0).chunk(world_size)
    mistakes: list[Mistakes] = []
    for rank in range(world_size):
        own_rows = own[rank].chunk(world_size)[rank]
        mistakes.append([(summed[rank], _SUMMED), (own_rows, _OWN), (own_rows / world_size, _OWN_DIVIDED)])
    expected_rows = [rows / world_size for rows in summed]
    expect_close_on_ranks([result["rows"] for result in results], expected_rows, _ROWS_HINT, mistakes, **_CLOSE)


def _check_messages(fn: Callable) -> None:
    """The forward pass calls one gather, and the backward pass one gather and one reduce-scatter"""
    for result in run_on_ranks(_train_on_rank, 2, fn, (4,), 1):
        forward, backward = result["forward"], result["backward"]
        if len(forward) != 1 or "gather" not in forward[0]:
            raise Wrong("one gather in the forward pass", forward, "Gather once, and call no other collective.")
        if not any("gather" in kind for kind in backward):
            raise Wrong("a gather in the backward pass", backward, _SAVED)
        if result["stores_weight"]:
            raise Wrong("only the rows are kept", "the complete W is kept", _ALIVE)
        if any("allreduce" in kind for kind in backward):
            raise Wrong("a reduce-scatter in the backward pass", backward, _ALL_REDUCE)
        if len(backward) != 2:
            raise Wrong("two collectives in the backward pass", backward, "Call one all-gather and one reduce-scatter.")


EXERCISE = Exercise(
    name="gathered",
    chapter="17",
    cases=(
        _check_output,
        case(
            "The gradient of x belongs to this rank, and the gradient of the rows is the mean over the ranks",
            _check_gradients,
        ),
        case("x with three dimensions, and with four", _check_gradients, shapes=((2, 3), (2, 1, 3))),
        case("Three ranks", _check_gradients, 3),
        case("If the layer is used twice, the gradients add up", _check_gradients, n_passes=2),
        _check_messages,
    ),
    hints=(
        "What does the backward pass need? Which of these tensors is too large to keep?",
        "Every rank computes a gradient of all rows from its own samples. Each rank needs the mean of its own rows.",
        "Call all_gather in both passes. In the backward pass, call reduce_scatter and divide.",
    ),
    deadline_s=180.0,
)
