"""Checks of chapter 25's exercise: one step of k-means on several ranks.

Each rank has its own rows. The answer returns the new centres and the inertia of the rows of all ranks. The checks
compare both with those of one process that has all rows, and they compare the messages that a rank sends.

Legend: N rows of all ranks, n rows of one rank, K centres, D columns. All distances are squared.

Source: Lloyd 1982, doi:10.1109/TIT.1982.1056489
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close
from dltutorial.course.checks.rank_harness import CommunicationRecorder, Message, Mistakes, run_on_ranks

_K = 4
_D = 3
_MEAN_OF_MEANS = (
    "A mean of the ranks' means is not the mean of all rows. Add sums and counts over the ranks, then divide."
)
_OWN_ROWS = "These are the means of this rank's rows only. Add the sums and the counts of all ranks."
_OWN_COUNTS = "The sums are of all ranks, but the counts are of this rank only. Add both."
_STAYS = "A centre without rows on any rank stays where it is. It is not NaN and does not move to 0."
_ALL_COUNTS = "A cluster is empty if the count of *all* ranks is 0. Each rank looked at its own count."
_TIES = "If two centres are equally near, the row belongs to the centre with the lower index."
_FLOAT64 = "Compute in float64 from the start. With 16 or 32 bits, large sums and squares lose small differences."
_DTYPE = "Return the new centres in the type of the given centres."
_BYTES = "That is more than K · (D + 1) + 1 numbers of 8 bytes. Do not send rows or labels."
_TWO_MESSAGES = "Use at most two messages. Sums, counts and inertia fit into one."
_EVERY_RANK = "Only rank 0 has the answer, but all ranks need it. Use all-reduce instead of reduce."
_NEW_CENTRES = "This is the inertia at the new centres. Use the distances to the given centres."
_SQUARED = "Square the distances before you add them."
_MEAN_INERTIA = "The inertia is a sum over all rows, not a mean."
_OWN_INERTIA = "This is the inertia of this rank's rows only."
_INERTIA = "The inertia is the sum of the squared distances of all rows to their nearest centres."
_PAIR = "Return two values: the centres, and the inertia as a float."


class _Clusters(NamedTuple):
    """The sum of the rows of each cluster, (K, D), and their number, (K, 1)."""

    sums_KD: Tensor
    counts_K1: Tensor

    def means(self, if_empty_KD: Tensor) -> Tensor:
        """Return the mean of each cluster, or the given centre if the cluster is empty."""
        return torch.where(self.counts_K1 > 0, self.sums_KD / self.counts_K1.clamp(min=1), if_empty_KD)


def _draw(sizes: Sequence[int], seed: int) -> tuple[list[Tensor], Tensor]:
    """Return the rows of each rank, shifted by rank so that the ranks' means differ, and the centres."""
    generator = torch.Generator().manual_seed(seed)
    centres_KD = 2 * torch.randn(_K, _D, generator=generator, dtype=torch.double)
    rows_of_rank = []
    for rank, n in enumerate(sizes):
        label_n = (torch.arange(n) + rank) % _K
        noise_nD = torch.randn(n, _D, generator=generator, dtype=torch.double)
        rows_of_rank.append(centres_KD[label_n] + noise_nD + 0.3 * rank)
    return rows_of_rank, centres_KD


def _nearest(x_ND: Tensor, centres_KD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distance of each row to its nearest centre, and the index of this centre."""
    distance_NK = (x_ND.double()[:, None] - centres_KD.double()).square().sum(2)
    return distance_NK.amin(1), distance_NK.argmin(1)


def _clusters(x_ND: Tensor, centres_KD: Tensor) -> _Clusters:
    label_N = _nearest(x_ND, centres_KD)[1]
    sums_KD = torch.zeros(centres_KD.shape, dtype=torch.double).index_add_(0, label_N, x_ND.double())
    return _Clusters(sums_KD, label_N.bincount(minlength=len(centres_KD))[:, None])


def _ties_to_last(x_ND: Tensor, centres_KD: Tensor) -> Tensor:
    """Return the new centres of an answer that gives a row to the last of the equally near centres."""
    return _clusters(x_ND, centres_KD.flip(0)).means(centres_KD.flip(0)).flip(0)


def _mistakes_of_rank(rows_of_rank: list[Tensor], centres_KD: Tensor, rank: int) -> Mistakes:
    """Return the centres of mistakes that depend on the ranks."""
    now_KD = centres_KD.double()
    every = _clusters(torch.cat(rows_of_rank), now_KD)
    of_rank = [_clusters(rows, now_KD) for rows in rows_of_rank]
    own = of_rank[rank]
    mistakes = [(torch.where(own.counts_K1 > 0, every.means(now_KD), now_KD), _ALL_COUNTS)]
    used_RK1 = torch.stack([clusters.counts_K1 > 0 for clusters in of_rank]).double()
    for if_empty_KD in (now_KD, torch.zeros_like(now_KD)):
        means_RKD = torch.stack([clusters.means(if_empty_KD) for clusters in of_rank])
        mean_of_used = (means_RKD * used_RK1).sum(0) / used_RK1.sum(0).clamp(min=1)
        mistakes += [(means_RKD.mean(0), _MEAN_OF_MEANS), (mean_of_used, _MEAN_OF_MEANS)]
    mistakes += [
        (own.means(now_KD), _OWN_ROWS),
        (_Clusters(every.sums_KD, own.counts_K1).means(now_KD), _OWN_COUNTS),
        (every.sums_KD / own.counts_K1, _OWN_COUNTS),
        (every.sums_KD / own.counts_K1.clamp(min=1), _OWN_COUNTS),
    ]
    return mistakes


def _step_on_rank(fn: Callable, rows_of_rank: list[Tensor], centres_KD: Tensor) -> tuple[Any, list[Message], bool]:
    """Return the answer's result, its messages, and whether its arguments are unchanged."""
    rows = rows_of_rank[dist.get_rank()]
    own_rows, own_centres = rows.clone(), centres_KD.clone()
    with CommunicationRecorder() as recorder:
        result = fn(own_rows, own_centres)
    unchanged = torch.equal(own_rows, rows) and torch.equal(own_centres, centres_KD)
    return result, recorder.messages, unchanged


def _check_step(
    fn: Callable, rows_of_rank: list[Tensor], centres_KD: Tensor, hint: str = "", rtol: float = 1e-9
) -> list[list[Message]]:
    """Compare the results of all ranks with those of one process, and return the messages of each rank."""
    results = run_on_ranks(_step_on_rank, len(rows_of_rank), fn, rows_of_rank, centres_KD)
    for rank, (result, _, _) in enumerate(results):
        _check_is_pair(result, rank)
        new_KD, inertia = result
        _check_centres(new_KD, rows_of_rank, centres_KD, rank, hint, rtol)
        _check_inertia(inertia, rows_of_rank, centres_KD, rank, hint)
    if not all(unchanged for _, _, unchanged in results):
        raise Wrong(
            "rows and centres as they were",
            "changed ones",
            "The caller still needs its arguments. Copy them before you change them.",
        )
    return [messages for _, messages, _ in results]


def _check_is_pair(result: Any, rank: int) -> None:
    if isinstance(result, (tuple, list)) and len(result) == 2 and torch.is_tensor(result[0]):
        return
    if result is None and rank > 0:  # rank 0 has returned a correct pair
        raise Wrong("(centres, inertia) on every rank", f"None on rank {rank}", _EVERY_RANK)
    raise Wrong("(centres, inertia)", result, "" if result is None else _PAIR)


def _check_centres(
    new_KD: Tensor, rows_of_rank: list[Tensor], centres_KD: Tensor, rank: int, hint: str, rtol: float
) -> None:
    """The centres must be those of one process, and have the dtype of the centres that were given."""
    x_ND, now_KD = torch.cat(rows_of_rank), centres_KD.double()
    every = _clusters(x_ND, now_KD)
    expected_KD = every.means(now_KD)
    mistakes = [(every.means(torch.zeros_like(now_KD)), _STAYS), (_ties_to_last(x_ND, now_KD), _TIES)]
    of_rank = _mistakes_of_rank(rows_of_rank, centres_KD, rank) if len(rows_of_rank) > 1 else []
    if new_KD.shape == expected_KD.shape and not _is_known(new_KD, of_rank):
        if rank > 0 and not torch.allclose(new_KD.double(), expected_KD, rtol=1e-5):
            raise Wrong("the same centres on all ranks", f"others on rank {rank}", _EVERY_RANK)
        if not new_KD.isfinite().all() and not _is_known(new_KD, mistakes):
            raise Wrong(expected_KD, new_KD, hint if hint == _FLOAT64 else _STAYS)
    expect_close(new_KD, expected_KD, hint, [*mistakes, *of_rank], rtol=rtol, atol=1e-9)
    if new_KD.dtype != centres_KD.dtype:
        raise Wrong(f"centres of {centres_KD.dtype}", f"{new_KD.dtype}", _DTYPE)


def _is_known(got: Tensor, mistakes: Mistakes) -> bool:
    """Return whether a known mistake gives this value."""
    return any(torch.allclose(got.double(), value, equal_nan=True) for value, _ in mistakes)


def _check_inertia(got: Any, rows_of_rank: list[Tensor], centres_KD: Tensor, rank: int, hint: str) -> None:
    """The inertia must be a float, and that of the rows of all ranks."""
    if not isinstance(got, float):
        raise Wrong("a float", got, "The inertia must be a Python float. tensor.item() returns one.")
    x_ND, now_KD = torch.cat(rows_of_rank).double(), centres_KD.double()
    distance_N, label_N = _nearest(x_ND, now_KD)
    new_KD = _clusters(x_ND, now_KD).means(now_KD)
    mistakes = [
        (_nearest(x_ND, new_KD)[0].sum(), _NEW_CENTRES),
        ((x_ND - new_KD[label_N]).square().sum(), _NEW_CENTRES),
        (distance_N.sqrt().sum(), _SQUARED),
        (distance_N.mean(), _MEAN_INERTIA),
    ]
    if len(rows_of_rank) > 1:
        mistakes.append((_nearest(rows_of_rank[rank], now_KD)[0].sum(), _OWN_INERTIA))
        mistakes.append((distance_N.sum() / len(rows_of_rank), _MEAN_INERTIA))
    expect_close(got, distance_N.sum().item(), hint or _INERTIA, mistakes, rtol=1e-6)


def _check_random_rows(fn: Callable, sizes: Sequence[int], seed: int) -> None:
    """One step with so many rows on each rank."""
    _check_step(fn, *_draw(sizes, seed))


def _check_empty_clusters(fn: Callable) -> None:
    """A cluster that is empty on one rank, and one that is empty on all"""
    rows_of_rank, centres_KD = _draw([30, 12], 4)
    label_n = _nearest(rows_of_rank[1], centres_KD)[1]
    rows_of_rank[1] = rows_of_rank[1][label_n != 0]
    _check_step(fn, rows_of_rank, centres_KD)
    centres_KD[2] = torch.tensor([50.0, -50.0, 50.0])
    _check_step(fn, rows_of_rank, centres_KD)


def _check_ties(fn: Callable) -> None:
    """Rows halfway between two centres, and two centres in one place"""
    centres_KD = torch.tensor([[0.0, 0, 0], [2, 0, 0], [0, 4, 0], [0, 4, 0]], dtype=torch.double)
    rows = torch.tensor([[1.0, 0, 0], [1, 1, 0], [2, 0, 1], [0, 2, 0], [0, 5, 1], [-1, 0, 0]], dtype=torch.double)
    _check_step(fn, [rows[:4], rows[4:]], centres_KD)


def _check_dtypes(fn: Callable) -> None:
    """Rows in 16 bits, and rows in 32 bits that are large"""
    generator = torch.Generator().manual_seed(5)
    centres_KD = torch.tensor([[300.0, 0, 0], [0, 300, 0], [0, 0, 300], [-300, 0, 0]])
    rows_of_rank = []
    for n in (300, 20):
        noise = torch.randn(4 * n, _D, generator=generator)
        rows_of_rank.append((centres_KD.repeat(n, 1) + noise).half())
    _check_step(fn, rows_of_rank, centres_KD, _FLOAT64, rtol=1e-6)
    far_KD = torch.tensor([[3e4, 3e4, 3e4]]) + torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    rows_of_rank = [far_KD.repeat(n, 1) + 0.25 * torch.randn(4 * n, _D, generator=generator) for n in (9, 4)]
    _check_step(fn, rows_of_rank, far_KD, _FLOAT64, rtol=1e-7)
    large = torch.tensor([[1e8, 0, 0], [1, 0, 0], [-1e8, 0, 0], [1, 3, 0]])
    wide_KD = torch.tensor([[0.0, 0, 0], [0, 1e9, 0], [0, 0, 1e9], [0, -1e9, 0]])
    _check_step(fn, [large[:3], large[3:]], wide_KD, _FLOAT64, rtol=1e-6)


def _check_messages(fn: Callable) -> None:
    """At most K · (D + 1) + 1 numbers are sent, in at most two messages"""
    most_bytes = torch.double.itemsize * (_K * (_D + 1) + 1)
    for messages in _check_step(fn, *_draw([100, 90], 6)):
        sent_bytes = sum(message.n_bytes for message in messages)
        if sent_bytes > most_bytes:
            raise Wrong(f"at most {most_bytes} bytes given by a rank", f"{sent_bytes} bytes", _BYTES)
        if len(messages) > 2:
            raise Wrong("at most 2 messages", f"{len(messages)} messages", _TWO_MESSAGES)


EXERCISE = Exercise(
    name="kmeans_step",
    chapter="25",
    cases=(
        case("One rank: centres and inertia of its rows", _check_random_rows, [40], seed=0),
        case("Two ranks: those of all rows", _check_random_rows, [30, 30], seed=1),
        case("Three ranks with unequal numbers of rows", _check_random_rows, [37, 9, 5], seed=2),
        case("A rank without rows takes part", _check_random_rows, [20, 0], seed=3),
        _check_empty_clusters,
        _check_ties,
        _check_dtypes,
        _check_messages,
    ),
    hints=(
        "Which numbers can be added over ranks: means, or the sums and counts from which means are computed?",
        "Which count says that a cluster is empty: the one of this rank, or the one of all ranks?",
        "Which of your results needs the given centres, and which one needs the new centres?",
    ),
    code=("sums_KD[:, D] = label_N.bincount(minlength=K)", "dist.all_reduce(packed)"),
    deadline_s=180.0,
)
