"""Checks of chapter 22's exercise: images and spectra contrasted over ranks, gradients included.

Real ranks embed what they have with weights that all share. The mean over ranks of the learner's losses, and of their
gradients by those weights, is held against one process with all samples. How a rank shares the work out is its own
business: only the means count.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.dealt import ranks
from dltutorial.course.checks.expect import expect_close

PATIENCE_S = 20.0  # for ranks that share busy cores
_B, _WIDTH, _P = 3, 5, 4
_CLOSE = {"rtol": 1e-6, "atol": 1e-9}
_OTHERS = "Each image looks for its spectrum among those of *all* ranks. Gather them."
_PLACE = "Rank r's partners are not the first of what was gathered: its own begin at r times B."
_LENGTH = "Angles are compared: divide each embedding by its length first."
_ONE_WAY = "Both ways: images look for their spectra, and spectra for their images; the mean of the two."
_BOTH = "The mean of both ways, not their sum."
_TEMPERATURE = "Cosines are divided by the temperature."
_SAME = "The same galaxy on another rank is no negative: leave pairs of one id out, but for the partner itself."
_HERE = "The ids of all ranks matter: gather them, too."
_DIGITS = "Ids are whole numbers; float32 has 24 bits for digits, and takes many ids for one. Leave them as they are."
_SUM = "The mean over this rank's samples, not their sum."
_CUT = (
    "The value is right, the gradient is not: each embedding is a negative on other ranks, too: "
    "their slopes of it must be added to yours."
)
_TIMES = "The gradient is this many times too large: sum slopes over the ranks once; DDP takes the mean."
_SMALL = "What all ranks want of a rank's embeddings is to be added, not averaged: DDP's mean is the only one."
_WHOLE = (
    f"{_SMALL} If each rank computes the whole loss but only its own piece has a gradient, it is n times too small."
)
_OUT = "the partner has the same id, and was left out too. Put it back."
_BACK = (
    "The partner has the same id, and was left out too: put it back. And a cosine of 0 still counts: its logit is −∞."
)
_ZERO = "Left out is not a cosine of 0: e⁰ still counts. Its logit is −∞."
_NEITHER = "Neither right nor wrong: a copy is no partner either. One target each."
_VIEWS = "An image chooses among spectra only: N candidates. The chapter's views had 2N − 1."
_TRANSPOSED = "Spectra look among the images of all ranks: one rank's table transposed holds only its own."
_ROWS = "Only the pair is left out; each galaxy still looks for its partner."


def _given(rank: int, repeated: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What a rank sees of its galaxies, and who they are."""
    draw = torch.Generator().manual_seed(10 + rank)
    image, spectrum = (torch.randn(_B, _WIDTH, generator=draw, dtype=torch.float64) for _ in range(2))
    ids = torch.arange(rank * _B, (rank + 1) * _B)
    if repeated:  # with the next rank, and on one rank
        ids = torch.tensor([rank, 100, rank + 1])
        ids[1] = rank if rank == 1 else 100 + rank
        ids += 2**40  # as surveys number them
    return image, spectrum, ids


def _weights() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(_WIDTH, _P, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(2)]


def _on_rank(fn: Callable, repeated: bool, temperature: float) -> tuple[Any, list[Tensor | None]]:
    image, spectrum, ids = _given(dist.get_rank(), repeated)
    weights = _weights()
    loss = fn(image @ weights[0], spectrum @ weights[1], ids, temperature)
    if not torch.is_tensor(loss) or loss.ndim:
        return loss, []
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), [w.grad for w in weights]


def _whole(n: int, repeated: bool, temperature: float, without: str = "") -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients of one process; ``without`` something, as a well-known mistake has it."""
    weights, parts = _weights(), [_given(rank, repeated) for rank in range(n)]
    image, spectrum, ids = (torch.cat(several) for several in zip(*parts, strict=True))
    a, b = image @ weights[0], spectrum @ weights[1]
    if without != "length":
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    a_there, b_there = (a.detach(), b.detach()) if without == "slopes" else (a, b)
    losses = []
    for mine, there in ((a, b_there), (b, a_there)):
        logits = mine @ there.T * (temperature if without == "division" else 1 / temperature)
        same = (ids[:, None] == ids) & ~torch.eye(len(ids), dtype=torch.bool)
        rank = torch.arange(len(ids)) // _B
        apart = rank[:, None] != rank
        if without == "slopes of others":
            logits = torch.where(apart, mine @ there.detach().T / temperature, logits)
        if without == "ids":
            same = torch.zeros_like(same)
        if without == "digits":
            same = (ids[:, None].float() == ids.float()) & ~torch.eye(len(ids), dtype=torch.bool)
        if without == "ids of others":
            same = same & ~apart
        if without == "others":
            same = same | apart
        partner = torch.arange(len(ids)) % _B if without.startswith("place") else torch.arange(len(ids))
        if without == "place of all":
            same = (ids[:, None] == ids) & (partner[:, None] != torch.arange(len(ids)))
        losses.append(F.cross_entropy(logits.masked_fill(same, -torch.inf), partner))
    loss = losses[0] if without == "one way" else sum(losses) / (1 if without == "half" else 2)
    loss = loss * (_B if without == "mean" else 1)
    return loss.detach(), list(torch.autograd.grad(loss, weights))


def _tables(n: int, repeated: bool, temperature: float) -> list[tuple[Tensor, str]]:
    """Values of one process whose tables of cosines hold something else, and a hint for each."""
    weights, parts = _weights(), [_given(rank, repeated) for rank in range(n)]
    image, spectrum, ids = (torch.cat(several) for several in zip(*parts, strict=True))
    a, b = (F.normalize(x @ w.detach(), dim=1) for x, w in zip((image, spectrum), weights, strict=True))
    each, rank = torch.arange(len(ids)), torch.arange(len(ids)) // _B
    alike, apart = ids[:, None] == ids, rank[:, None] != rank
    copy = alike & (each[:, None] != each)
    raw = a @ b.T / temperature, b @ a.T / temperature
    ways = [way.masked_fill(copy, -torch.inf) for way in raw]
    both = torch.cat((a, b))
    views = (both @ both.T / temperature).fill_diagonal_(-torch.inf)
    views.masked_fill_(copy.repeat(2, 2), -torch.inf)

    def mean(tables: Any, target: Tensor = each) -> Tensor:
        return torch.stack([F.cross_entropy(table, target) for table in tables]).mean()

    share = alike.double() / alike.sum(1, keepdim=True)
    inside = torch.stack([(way.logsumexp(1) - way.masked_fill(~alike, -torch.inf).logsumexp(1)).mean() for way in raw])
    found = [
        (torch.tensor(torch.inf), f"Infinite: {_OUT}"),
        (mean(way.masked_fill(alike, -1e9) for way in raw), f"Nearly infinite: {_OUT}"),
        (mean(way.masked_fill(alike, 0.0) for way in raw), _BACK),
        (mean(way.masked_fill(copy, 0.0) for way in raw), _ZERO),
        (mean(raw, share), _NEITHER),
        (mean(raw, alike.double()), _NEITHER),
        (inside.mean(), _NEITHER),
        (F.cross_entropy(views, torch.cat((each + len(ids), each))), _VIEWS),
        (mean((ways[0], ways[1].masked_fill(apart, -torch.inf))), _TRANSPOSED),
    ]
    lone = ~copy.any(1)
    for tables in (ways, raw, [way.masked_fill(~lone, -torch.inf) for way in raw]):
        rows = torch.stack([F.cross_entropy(table, each, reduction="none") for table in tables]).mean(0)
        kept = [rows[(rank == r) & lone] for r in range(n)]
        found.append((torch.stack([row.mean() for row in kept]).nanmean(), _ROWS))
        found.append((torch.cat(kept).sum() / len(ids), _ROWS))
        found.append((torch.cat(kept).mean(), _ROWS))
    return found


_MISTAKES = {
    "others": _OTHERS,
    "place": _PLACE,
    "place of all": _PLACE,
    "length": _LENGTH,
    "one way": _ONE_WAY,
    "half": _BOTH,
    "division": _TEMPERATURE,
    "mean": _SUM,
}


def _runs(fn: Callable, n: int, repeated: bool, temperature: float) -> tuple[Tensor, list[Tensor]]:
    found = ranks(_on_rank, n, PATIENCE_S, fn, repeated, temperature)
    for loss, slopes in found:
        if not torch.is_tensor(loss) or loss.ndim:
            raise Wrong("a scalar tensor", loss, "Return the loss: one number, as a tensor.")
        if any(slope is None for slope in slopes):
            hint = "No gradient arrives at the weights: gathering passes none by itself."
            raise Wrong("a gradient of the weights of images and spectra", None, hint)
    losses, slopes = zip(*found, strict=True)
    mean = [torch.stack(several).mean(0) for several in zip(*slopes, strict=True)]
    return torch.stack(losses).mean(), mean


def _compare(fn: Callable, n: int = 2, repeated: bool = False, temperature: float = 0.5, slopes: bool = True) -> None:
    got, got_slopes = _runs(fn, n, repeated, temperature)
    wanted, wanted_slopes = _whole(n, repeated, temperature)
    wrong = [(_whole(n, repeated, temperature, what)[0], hint) for what, hint in _MISTAKES.items()]
    if repeated:
        for what, hint in (("ids", _SAME), ("ids of others", _HERE), ("digits", _DIGITS)):
            wrong.append((_whole(n, repeated, temperature, what)[0], hint))
    wrong += _tables(n, repeated, temperature)
    expect_close(got, wanted, "The mean over ranks is to be the loss of one process.", wrong, **_CLOSE)
    if not slopes:
        return
    cut, own = (_whole(n, repeated, temperature, what)[1] for what in ("slopes", "slopes of others"))
    for mine, right, without, of_own in zip(got_slopes, wanted_slopes, cut, own, strict=True):
        averaged = without + (right - without) / n
        known = [(without, _CUT), (of_own, _CUT), (averaged, _SMALL)]
        known += [(k * right, _TIMES) for k in (n, n * n)] + [(right / n, _WHOLE)]
        hint = "The mean of the ranks' gradients is to be that of one process; the value is right."
        expect_close(mine, right, hint, known, **_CLOSE)


def _alone(fn: Callable) -> None:
    """One rank: the loss of its own galaxies"""
    _compare(fn, 1, slopes=False)


def _values(fn: Callable) -> None:
    """Two ranks: the mean of their losses is that of one process"""
    _compare(fn, slopes=False)


def _gradients(fn: Callable) -> None:
    """Two ranks: the mean of their gradients, too"""
    _compare(fn)


def _three_ranks(fn: Callable) -> None:
    """Three ranks, another temperature"""
    _compare(fn, 3, temperature=0.2)


def _twice(fn: Callable) -> None:
    """A galaxy that two ranks have, or one rank has twice"""
    _compare(fn, 2, repeated=True)
    _compare(fn, 3, repeated=True)


EXERCISE = Exercise(
    name="infonce_over_ranks",
    chapter="22",
    cases=(_alone, _values, _gradients, _three_ranks, _twice),
    hints=(
        "On which ranks does the loss depend on this rank's embeddings? Who tells it the slopes?",
        "Which entries of the table of cosines are partners, which are negatives, which are neither?",
        "Count the means: over a rank's samples, over both ways, and DDP's over the ranks. Nothing else divides.",
    ),
    code=("logits.masked_fill(same_galaxy & ~partner, -torch.inf)",),
    deadline_s=180.0,
)
