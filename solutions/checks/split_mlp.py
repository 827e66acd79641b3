"""Checks of chapter 18's exercise, first part: an MLP cut over real ranks, with its backward pass.

Every rank calls the learner's function on the same whole weights. What is right is the MLP of one process; a rank's
gradients of the weights are right in its own piece, and zero, or missing, elsewhere. Messages are counted on their way
through torch's dispatcher; a deadlock ends at the deadline of the launch.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.dealt import ranks
from dltutorial.course.checks.expect import expect_close

PATIENCE_S = 20.0  # for ranks that share busy cores
_N, _D, _H = 5, 6, 12  # samples, width, hidden numbers
_NAMES = ("x", "up", "up's bias", "down", "down's bias")
_NOTHING = "Nothing was sent. Take this rank's part of the hidden numbers, and sum the ranks' parts of the result."
_PART = "That is this rank's part. The ranks' parts must be summed: an all-reduce."
_BIAS = "The last bias came in once for each rank. Add it after the sum."
_HIDDEN = "A piece of the hidden numbers is a piece of up's rows, of its bias, and of down's columns: the same piece."
_ENTERS = "This is the slope through this rank's hidden numbers alone. Where x enters, the backward pass must sum."
_TIMES = "Once too much for each rank: behind the sum every rank has the whole slope, and backward nothing is sent."
_OTHERS = "A gradient of what other ranks hold: use nothing but this rank's piece of the hidden numbers."
_ORDER = "Right numbers of another rank: pieces in the order of the ranks, as tensor.chunk cuts them."
_SHARE = "The mean over the ranks. Each of them has another part of the slope: they are summed."
_STOPS = "The gradient stops. Messages are no part of the graph: write an autograd.Function around each."
_NO_PART = "x has a gradient, this has none on this rank: hand its piece to your layers as it came, not detached."
_LAST = "This rank has not used the last bias. All ranks have it, whole: each adds it, once, after the sum."
_TWO = "One sum forward, for the result, and one backward, for x's slope: each of N × D values, and no more."


class _Counter(TorchDispatchMode):
    """The names and bytes of what is given to torch.distributed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and not func._opname.startswith(("recv", "wait", "barrier")):
            leaves = torch.utils._pytree.tree_leaves(args)
            sizes = [leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor)]
            self.sent.append((func._opname.strip("_"), max(sizes, default=0)))
        return func(*args, **(kwargs or {}))


def _given() -> tuple[list[torch.Tensor], torch.Tensor]:
    """The five arguments, alike on all ranks, and the result's slope."""
    generator = torch.Generator().manual_seed(4)
    shapes = (_N, _D), (_H, _D), (_H,), (_D, _H), (_D,)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    return tensors, torch.randn(_N, _D, generator=generator, dtype=torch.float64)


def _whole(x: torch.Tensor, up: torch.Tensor, b: torch.Tensor, down: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, up, b)), down, c)


def _on_rank(fn: Callable, back: bool) -> tuple[Any, list, list, list]:
    """Result, gradients, and the messages forward and backward."""
    warnings.filterwarnings("ignore")
    given, slope = _given()
    forward, backward = _Counter(), _Counter()
    with forward:
        y = fn(*given)
    if not isinstance(y, torch.Tensor):
        return y, [], [], []
    told = y.detach().clone()
    with backward:
        if back and y.requires_grad and y.shape == slope.shape:
            y.backward(slope)
    return told, [tensor.grad for tensor in given], forward.sent, backward.sent


def _run(fn: Callable, p: int, back: bool = True) -> list[tuple[Any, list, list, list]]:
    try:
        return ranks(_on_rank, p, PATIENCE_S, fn, back)
    except Wrong as failed:
        if "gradient" not in failed.got and ("shape" in failed.got or "size" in failed.got):
            failed.hint = _HIDDEN
        raise


def _result(fn: Callable, p: int) -> None:
    given, _ = _given()
    with torch.no_grad():
        x, up, b, down, c = given
        wanted = _whole(*given)
        for rank, (got, *_) in enumerate(_run(fn, p, back=False)):
            mine = slice(rank * _H // p, (rank + 1) * _H // p)
            part = _whole(x, up[mine], b[mine], down[:, mine], torch.zeros_like(c))
            mistakes = [
                (part, _PART),
                (part + c, _PART),
                (wanted + (p - 1) * c, _BIAS),
                (wanted - c, "The last bias is missing."),
                (wanted / p, "That is the mean. The parts are summed."),
                (p * wanted, _OTHERS),
            ]
            expect_close(got, wanted, _HIDDEN, mistakes)


def _gradients(fn: Callable, p: int, of: range) -> None:
    given, slope = _given()
    _whole(*given).backward(slope)
    for rank, (_, grads, *_) in enumerate(_run(fn, p)):
        mine = slice(rank * _H // p, (rank + 1) * _H // p)
        x, up, b, down, _ = (tensor.detach().requires_grad_() for tensor in given)
        _whole(x, up[mine], b[mine], down[:, mine], torch.zeros(_D, dtype=x.dtype)).backward(slope)
        for n in of:
            wanted, got = given[n].grad.clone(), grads[n] if grads else None
            if got is None:
                hint = _STOPS if n == 0 else _NO_PART if n < 4 else _LAST
                raise Wrong(f"a gradient of {_NAMES[n]} on rank {rank} of {p}", None, hint)
            if n in (1, 2, 3):
                kept = torch.zeros_like(wanted)
                at = (slice(None), mine) if n == 3 else mine
                kept[at] = wanted[at]
                every = torch.zeros_like(wanted)
                at = (slice(None), slice(rank, None, p)) if n == 3 else slice(rank, None, p)
                every[at] = wanted[at]
                mistakes = [(wanted, _OTHERS), (p * kept, _TIMES), (every, _ORDER), (kept / p, _SHARE)]
                expect_close(got, kept, f"The gradient of {_NAMES[n]} is another.", mistakes, atol=1e-12)
            else:
                mistakes = [(p * wanted, _TIMES), (wanted / p, _SHARE)]
                mistakes += [(x.grad, _ENTERS), (p * x.grad, _ENTERS)] * (n == 0)
                expect_close(got, wanted, f"The gradient of {_NAMES[n]} is another.", mistakes)


def _messages(fn: Callable) -> None:
    """One all-reduce forward, one backward"""
    for rank, (_, _, *sent) in enumerate(_run(fn, 2)):
        if not any(sent):
            raise Wrong(f"messages of rank {rank}", "none", _NOTHING)
        if sent != [[("allreduce", _N * _D * 8)]] * 2:
            raise Wrong(f"an all-reduce of {_N * _D * 8} bytes forward, one backward", f"{sent}", _TWO)


_HINTS = (
    "Which rows of up, and which columns of down, belong to one hidden number? x.tensor_split(p) cuts evenly.",
    "y is a sum of parts, one a rank. If y changes by as much as one part does, what is the part's slope?",
    "x goes into every rank's part. Whose slopes make up x's? Who knows them?",
)
_CODE = (
    "mine = torch.arange(len(up)).chunk(dist.get_world_size())[dist.get_rank()]",
    "class Enter(torch.autograd.Function): forward returns x.view_as(x), backward the sum of all ranks' slopes",
    "return Leave.apply(F.linear(hidden, down[:, mine])) + last",
)
EXERCISE = Exercise(
    name="split_mlp",
    chapter="18",
    cases=(
        case("Two ranks: the result is the whole MLP's", _result, 2),
        case("x gets the whole slope", _gradients, 2, range(1)),
        case("Weights get theirs, each rank in its own piece", _gradients, 2, range(1, 5)),
        _messages,
        case("Four ranks: the result", _result, 4),
        case("Four ranks: all gradients", _gradients, 4, range(5)),
    ),
    hints=_HINTS,
    code=_CODE,
    deadline_s=180.0,
)
