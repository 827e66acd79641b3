"""Checks of chapter 25's exercise: a step of k-means on real ranks, beside one process that has all rows.

Looked at: centres and inertia on each rank; and the messages, as torch hands them to its process group.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.dealt import Wire, ranks
from dltutorial.course.checks.expect import expect_close

PATIENCE_S = 20.0  # for ranks that share busy cores
_K, _D = 4, 3
_MEANS = "A mean of the ranks' means is not the mean of all rows: add up sums and counts, then divide."
_OWN = "These are this rank's rows alone: sums and counts of all ranks are to be added up."
_COUNTS = "The sums are of all ranks, the counts of this one: add up both."
_STAYS = "A centre that no row of any rank is nearest to stays where it is: no NaN, and not at 0."
_ALL = "Whether a cluster is empty, the count of *all* ranks says; each rank went by its own."
_TIES = "Equally near: the row belongs to the centre with the lowest index."
_DOUBLE = "Compute in float64 from the start: 16 and 32 bits lose small parts of large sums, and of large squares."
_TYPE = "The new centres are of the type of those given."
_BYTES = "That is more than K · (D + 1) + 1 numbers of 8 bytes: rows, or labels, are not to be sent."
_TWICE = "At most two messages: sums, counts and inertia fit into one."
_EVERY = "Rank 0 has the answer; all ranks need it: all-reduce, not reduce."
_NEW = "That is the inertia at the new centres: distances to those that were given are asked."
_SQUARED = "Distances are squared before they are added up."
_MEAN_OF = "The inertia is a sum over all rows, not a mean."
_OWN_INERTIA = "That is the inertia of this rank's rows alone."
_BOTH = "Return two things: the centres, and the inertia as a float."

Found = tuple[Tensor, float]


def _rows(sizes: Sequence[int], seed: int) -> tuple[list[Tensor], Tensor]:
    """Each rank's rows, around centres of its own, so that the ranks' means differ."""
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(_K, _D, generator=draw, dtype=torch.double)
    parts = []
    for rank, n in enumerate(sizes):
        label = (torch.arange(n) + rank) % _K
        parts.append(centres[label] + torch.randn(n, _D, generator=draw, dtype=torch.double) + 0.3 * rank)
    return parts, centres


def _near(x: Tensor, centres: Tensor, last: bool = False) -> tuple[Tensor, Tensor]:
    """Squared distance to the nearest centre, and which it is."""
    square = (x.double()[:, None] - centres.double()).square().sum(2)
    if last:
        return square.amin(1), len(centres) - 1 - square.flip(1).argmin(1)
    return square.amin(1), square.argmin(1)


def _sums(x: Tensor, centres: Tensor, last: bool = False) -> tuple[Tensor, Tensor]:
    label = _near(x, centres, last)[1]
    sums = torch.zeros(centres.shape, dtype=torch.double).index_add_(0, label, x.double())
    return sums, label.bincount(minlength=len(centres))[:, None]


def _means(sums: Tensor, counts: Tensor, empty: Tensor) -> Tensor:
    return torch.where(counts > 0, sums / counts.clamp(min=1), empty)


def _mistakes(parts: list[Tensor], centres: Tensor, rank: int) -> list[tuple[Tensor, str]]:
    """The centres of well-known mistakes on this rank."""
    x, now = torch.cat(parts), centres.double()
    (sums, counts), own = _sums(x, now), [_sums(part, now) for part in parts]
    wrong = [(_means(sums, counts, torch.zeros_like(now)), _STAYS), (_means(*_sums(x, now, last=True), now), _TIES)]
    if len(parts) > 1:
        wrong += [(torch.where(own[rank][1] > 0, _means(sums, counts, now), now), _ALL)]
        for empty in (now, torch.zeros_like(now)):
            means = torch.stack([_means(*each, empty) for each in own])
            weights = torch.stack([n > 0 for _, n in own]).double()
            wrong += [(means.mean(0), _MEANS), ((means * weights).sum(0) / weights.sum(0).clamp(min=1), _MEANS)]
        wrong += [(_means(*own[rank], now), _OWN), (_means(sums, own[rank][1], now), _COUNTS)]
        wrong += [(sums / own[rank][1], _COUNTS), (sums / own[rank][1].clamp(min=1), _COUNTS)]
    return wrong


def _on_rank(fn: Callable, parts: list[Tensor], centres: Tensor) -> tuple[Any, list[tuple[str, int]], bool]:
    mine, given = parts[dist.get_rank()].clone(), centres.clone()
    with Wire() as wire:
        found = fn(mine, given)
    return found, wire.sent, torch.equal(mine, parts[dist.get_rank()]) and torch.equal(given, centres)


def _centres(got: Tensor, wanted: Tensor, wrong: list[tuple[Tensor, str]], hint: str, rtol: float) -> None:
    if got.shape == wanted.shape and not got.isfinite().all() and not any(
        torch.allclose(got.double(), value, equal_nan=True) for value, _ in wrong
    ):  # fmt: skip
        raise Wrong(wanted, got, _STAYS if hint != _DOUBLE else hint)
    expect_close(got, wanted, hint, wrong, rtol=rtol, atol=1e-9)


def _inertia(got: Any, parts: list[Tensor], now: Tensor, new: Tensor, rank: int, hint: str) -> None:
    if not isinstance(got, float):
        raise Wrong("a float", got, "The inertia is a Python float: item() makes one of a tensor.")
    x = torch.cat(parts).double()
    near = _near(x, now)[0]
    wrong = [(_near(x, new)[0].sum(), _NEW), (near.sqrt().sum(), _SQUARED), (near.mean(), _MEAN_OF)]
    wrong += [((x - new[_near(x, now)[1]]).square().sum(), _NEW)]
    if len(parts) > 1:
        wrong += [(_near(parts[rank], now)[0].sum(), _OWN_INERTIA), (near.sum() / len(parts), _MEAN_OF)]
    expect_close(got, near.sum().item(), hint or "Each row's squared distance to its centre, summed.", wrong, rtol=1e-6)


def _step(fn: Callable, parts: list[Tensor], centres: Tensor, hint: str = "", rtol: float = 1e-9) -> list[list]:
    """Run it on as many ranks as there are parts; the messages of each."""
    found = ranks(_on_rank, len(parts), PATIENCE_S, fn, parts, centres)
    now = centres.double()
    wanted = _means(*_sums(torch.cat(parts), now), now)
    good = []
    for rank, (both, _, _) in enumerate(found):
        if not isinstance(both, (tuple, list)) or len(both) != 2 or not torch.is_tensor(both[0]):
            if both is None and good:
                raise Wrong("(centres, inertia) on every rank", f"None on rank {rank}", _EVERY)
            raise Wrong("(centres, inertia)", both, "" if both is None else _BOTH)
        new, inertia = both
        wrong = _mistakes(parts, centres, rank)
        if good and new.shape == wanted.shape and not any(
            torch.allclose(new.double(), value, equal_nan=True) for value, _ in wrong[2:]
        ) and not torch.allclose(new.double(), wanted, rtol=1e-5):  # fmt: skip
            raise Wrong("the same centres on all ranks", f"others on rank {rank}", _EVERY)
        _centres(new, wanted, wrong, hint, rtol)
        if new.dtype != centres.dtype:
            raise Wrong(f"centres of {centres.dtype}", f"{new.dtype}", _TYPE)
        _inertia(inertia, parts, now, wanted, rank, hint)
        good.append(rank)
    if not all(same for _, _, same in found):
        raise Wrong("rows and centres as they were", "changed ones", "Others still need what was given: copy first.")
    return [sent for _, sent, _ in found]


def _alone(fn: Callable) -> None:
    """One rank: centres and inertia of its rows"""
    _step(fn, *_rows([40], 0))


def _two(fn: Callable) -> None:
    """Two ranks: those of all rows"""
    _step(fn, *_rows([30, 30], 1))


def _unequal(fn: Callable) -> None:
    """Three ranks with unequal numbers of rows"""
    _step(fn, *_rows([37, 9, 5], 2))


def _no_rows(fn: Callable) -> None:
    """A rank without rows takes part"""
    _step(fn, *_rows([20, 0], 3))


def _empty(fn: Callable) -> None:
    """A cluster that is empty on one rank, and one that is empty on all"""
    parts, centres = _rows([30, 12], 4)
    parts[1] = parts[1][_near(parts[1], centres)[1] != 0]
    _step(fn, parts, centres)
    centres[2] = torch.tensor([50.0, -50.0, 50.0])
    _step(fn, parts, centres)


def _ties(fn: Callable) -> None:
    """Rows halfway between two centres, and two centres in one place"""
    centres = torch.tensor([[0.0, 0, 0], [2, 0, 0], [0, 4, 0], [0, 4, 0]], dtype=torch.double)
    rows = torch.tensor([[1.0, 0, 0], [1, 1, 0], [2, 0, 1], [0, 2, 0], [0, 5, 1], [-1, 0, 0]], dtype=torch.double)
    _step(fn, [rows[:4], rows[4:]], centres)


def _types(fn: Callable) -> None:
    """Rows in 16 bits, and rows in 32 bits that are large"""
    draw = torch.Generator().manual_seed(5)
    centres = torch.tensor([[300.0, 0, 0], [0, 300, 0], [0, 0, 300], [-300, 0, 0]])
    parts = [(centres.repeat(n, 1) + torch.randn(4 * n, _D, generator=draw)).half() for n in (300, 20)]
    _step(fn, parts, centres, _DOUBLE, rtol=1e-6)
    far = torch.tensor([[3e4, 3e4, 3e4]]) + torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    parts = [far.repeat(n, 1) + 0.25 * torch.randn(4 * n, _D, generator=draw) for n in (9, 4)]
    _step(fn, parts, far, _DOUBLE, rtol=1e-7)
    large = torch.tensor([[1e8, 0, 0], [1, 0, 0], [-1e8, 0, 0], [1, 3, 0]])
    wide = torch.tensor([[0.0, 0, 0], [0, 1e9, 0], [0, 0, 1e9], [0, -1e9, 0]])
    _step(fn, [large[:3], large[3:]], wide, _DOUBLE, rtol=1e-6)


def _few(fn: Callable) -> None:
    """At most K · (D + 1) + 1 numbers are sent, in at most two messages"""
    most = 8 * (_K * (_D + 1) + 1)
    for sent in _step(fn, *_rows([100, 90], 6)):
        sent = [(kind, n) for kind, n in sent if kind != "barrier"]
        if (n_bytes := sum(n for _, n in sent)) > most:
            raise Wrong(f"at most {most} bytes given by a rank", f"{n_bytes} bytes", _BYTES)
        if len(sent) > 2:
            raise Wrong("at most 2 messages", f"{len(sent)} messages", _TWICE)


EXERCISE = Exercise(
    name="kmeans_step",
    chapter="25",
    cases=(_alone, _two, _unequal, _no_rows, _empty, _ties, _types, _few),
    hints=(
        "Which numbers can be added up over ranks: means, or what means are made of?",
        "Who knows whether a cluster is empty, and when?",
        "Which of what you compute needs the centres that were given, which the new ones?",
    ),
    code=("sums_KD[:, D] = label_N.bincount(minlength=K)", "dist.all_reduce(packed)"),
    deadline_s=180.0,
)
