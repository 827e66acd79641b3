"""Checks of chapter 22's exercise: a contrastive loss of images and spectra on several ranks.

Each rank embeds its own galaxies with weights that all ranks share, and calls the answer, which returns a loss. The
mean of the losses over the ranks and the mean of their gradients must be those of one process that has all galaxies.
An answer may distribute the work in another way, because only the means are compared.

Legend: B galaxies of one rank, N of all ranks, P features of an embedding. Rows are queries, columns are candidates.

Source: van den Oord et al. 2018, arXiv:1807.03748
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close
from dltutorial.course.checks.rank_harness import run_on_ranks

_B = 3
_WIDTH = 5
_P = 4
_CLOSE = {"rtol": 1e-6, "atol": 1e-9}
_OTHERS = "Each image looks for its spectrum among those of *all* ranks. Gather them."
_PLACE = "The partners of rank r are not the first of the gathered embeddings. They begin at r times B."
_LENGTH = "The loss needs cosines, so divide each embedding by its length first."
_ONE_WAY = (
    "Both ways: images look for their spectra, and spectra look for their images. Return the mean of the two losses."
)
_BOTH = "Return the mean of the two losses, not their sum."
_TEMPERATURE = "The cosines must be divided by the temperature."
_SAME = "The same galaxy on another rank is no negative. Leave out pairs with the same id, except for the partner."
_HERE = "You need the ids of all ranks, so gather them, too."
_DIGITS = (
    "Ids are large integers, and float32 has 24 bits for digits, so it makes different ids equal. Keep the integers."
)
_SUM = "Return the mean over the galaxies of this rank, not their sum."
_CUT = (
    "The value is correct, but the gradient is not. Each embedding is a negative on other ranks, too. "
    "The gradients that the other ranks compute for it must be added to yours."
)
_TIMES = "The gradient is this many times too large. Add the gradients of all ranks once. DDP computes the mean later."
_SMALL = "The gradients of all ranks for an embedding must be added, not averaged, because DDP already averages."
_WHOLE = (
    f"{_SMALL} If each rank computes the complete loss, and only its own embeddings have a gradient, "
    "the result is n times too small."
)
_OUT = "the partner has the same id, and you left it out, too. Put it back."
_BACK = (
    "The partner has the same id, and you left it out, too: put it back. And a cosine of 0 still counts in the "
    "softmax, so the logit of a pair that is left out must be −∞."
)
_ZERO = "A pair that is left out must have the logit −∞. A logit of 0 is not enough, because e⁰ still counts."
_NEITHER = "The same galaxy elsewhere is neither a negative nor a partner. One target each."
_VIEWS = "An image looks only among spectra, so it has N candidates. In the chapter, a view has 2N − 1."
_TRANSPOSED = "Spectra look among the images of all ranks, but one rank's table, transposed, has only its own images."
_ROWS = "Leave out only the pair. Each galaxy still looks for its partner, so keep all rows."


class _Galaxies(NamedTuple):
    """Galaxies of one rank or of all ranks: observations of width W, (n, W), and the id of each galaxy, (n,)."""

    image_nW: Tensor
    spectrum_nW: Tensor
    id_n: Tensor


def _galaxies(rank: int, repeated: bool) -> _Galaxies:
    """Return the galaxies of a rank; if ``repeated``, some galaxies are on two ranks or twice on one rank."""
    generator = torch.Generator().manual_seed(10 + rank)
    image_BW = torch.randn(_B, _WIDTH, generator=generator, dtype=torch.float64)
    spectrum_BW = torch.randn(_B, _WIDTH, generator=generator, dtype=torch.float64)
    id_B = torch.arange(rank * _B, (rank + 1) * _B)
    if repeated:
        id_B = torch.tensor([rank, 100 + rank, rank + 1])
        if rank == 1:
            id_B[1] = rank
        id_B += 2**40  # surveys have such numbers
    return _Galaxies(image_BW, spectrum_BW, id_B)


def _galaxies_of_all(world_size: int, repeated: bool) -> _Galaxies:
    of_rank = [_galaxies(rank, repeated) for rank in range(world_size)]
    image_NW, spectrum_NW, id_N = (torch.cat(tensors) for tensors in zip(*of_rank, strict=True))
    return _Galaxies(image_NW, spectrum_NW, id_N)


def _make_weights() -> list[Tensor]:
    """Return the weights of two linear networks, for images and for spectra, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(_WIDTH, _P, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]


def _loss_on_rank(fn: Callable, repeated: bool, temperature: float) -> tuple[Any, list[Tensor | None]]:
    """Return the answer's loss, and the gradients of the weights if the loss is a scalar tensor."""
    galaxies = _galaxies(dist.get_rank(), repeated)
    weights = _make_weights()
    loss = fn(galaxies.image_nW @ weights[0], galaxies.spectrum_nW @ weights[1], galaxies.id_n, temperature)
    if not torch.is_tensor(loss) or loss.ndim:
        return loss, []
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), [weight.grad for weight in weights]


def _rank_of(n: int) -> Tensor:
    """Return the rank of each of n galaxies."""
    return torch.arange(n) // _B


def _copies(id_N: Tensor) -> Tensor:
    """Return the pairs of different samples with the same id, an (N, N) mask."""
    return (id_N[:, None] == id_N) & ~torch.eye(len(id_N), dtype=torch.bool)


def _in_one_process(
    world_size: int, repeated: bool, temperature: float, without_gradient: str = ""
) -> tuple[Tensor, list[Tensor]]:
    """Return loss and gradients of one process that has the galaxies of all ranks.

    Args:
        world_size: The number of ranks.
        repeated: Whether some galaxies occur twice.
        temperature: The temperature of the loss.
        without_gradient: The candidates that a known mistake detaches: "" for none, "all", or "other ranks".
    """
    galaxies = _galaxies_of_all(world_size, repeated)
    weights = _make_weights()
    image_NP = F.normalize(galaxies.image_nW @ weights[0], dim=1)
    spectrum_NP = F.normalize(galaxies.spectrum_nW @ weights[1], dim=1)
    rank_N = _rank_of(len(image_NP))
    if without_gradient == "all":
        detached_NN = torch.ones(len(rank_N), len(rank_N), dtype=torch.bool)
    elif without_gradient == "other ranks":
        detached_NN = rank_N[:, None] != rank_N
    else:
        detached_NN = torch.zeros(len(rank_N), len(rank_N), dtype=torch.bool)
    losses = []
    for query_NP, candidate_NP in ((image_NP, spectrum_NP), (spectrum_NP, image_NP)):
        cosine_NN = query_NP @ candidate_NP.T
        cosine_NN = torch.where(detached_NN, query_NP @ candidate_NP.detach().T, cosine_NN)
        logits_NN = (cosine_NN / temperature).masked_fill(_copies(galaxies.id_n), -torch.inf)
        losses.append(F.cross_entropy(logits_NN, torch.arange(len(rank_N))))
    loss = torch.stack(losses).mean()
    return loss.detach(), list(torch.autograd.grad(loss, weights))


def _mean_loss(tables: Sequence[Tensor], target: Tensor) -> Tensor:
    """Return the mean cross entropy of tables of logits, each (N, N)."""
    return torch.stack([F.cross_entropy(table, target) for table in tables]).mean()


class _Tables:
    """The tables of logits of one process, from which the values of known mistakes are computed.

    Attributes:
        raw: The logits of images against spectra and of spectra against images, each (N, N).
        masked: The same tables, in which other samples of the same galaxy are left out.
    """

    def __init__(self, world_size: int, repeated: bool, temperature: float) -> None:
        """Compute the tables of the galaxies of all ranks."""
        galaxies = _galaxies_of_all(world_size, repeated)
        image_weight, spectrum_weight = (weight.detach() for weight in _make_weights())
        self.temperature = temperature
        self.id_N = galaxies.id_n
        self.image_NP = galaxies.image_nW @ image_weight
        self.spectrum_NP = galaxies.spectrum_nW @ spectrum_weight
        self.partner_N = torch.arange(len(self.id_N))
        self.rank_N = _rank_of(len(self.id_N))
        self.other_rank_NN = self.rank_N[:, None] != self.rank_N
        self.copy_NN = _copies(self.id_N)
        self.same_id_NN = self.id_N[:, None] == self.id_N
        cosine_NN = F.normalize(self.image_NP, dim=1) @ F.normalize(self.spectrum_NP, dim=1).T
        self.raw = (cosine_NN / temperature, cosine_NN.T / temperature)
        self.masked = self.filled(self.copy_NN, -torch.inf)

    def filled(self, mask_NN: Tensor, value: float) -> list[Tensor]:
        """Return the tables with a value at the masked entries."""
        return [table.masked_fill(mask_NN, value) for table in self.raw]

    def mean(self, tables: Sequence[Tensor]) -> Tensor:
        """Return the loss of these tables with the correct partners."""
        return _mean_loss(tables, self.partner_N)

    def mistakes(self) -> list[tuple[Tensor, str]]:
        """Return the values of mistakes that are known for any galaxies."""
        correct = self.mean(self.masked)
        first_N = self.partner_N % _B
        not_first_NN = self.same_id_NN & (first_N[:, None] != self.partner_N)
        unnormalised_NN = self.image_NP @ self.spectrum_NP.T / self.temperature
        unnormalised = [unnormalised_NN.masked_fill(self.copy_NN, -torch.inf)]
        unnormalised.append(unnormalised_NN.T.masked_fill(self.copy_NN, -torch.inf))
        return [
            (self.mean(self.filled(self.copy_NN | self.other_rank_NN, -torch.inf)), _OTHERS),
            (_mean_loss(self.masked, first_N), _PLACE),
            (_mean_loss(self.filled(not_first_NN, -torch.inf), first_N), _PLACE),
            (self.mean(unnormalised), _LENGTH),
            (self.mean(self.masked[:1]), _ONE_WAY),
            (2 * correct, _BOTH),
            (self.mean([table * self.temperature**2 for table in self.masked]), _TEMPERATURE),
            (_B * correct, _SUM),
        ]

    def mistakes_with_ids(self) -> list[tuple[Tensor, str]]:
        """Return the values of mistakes with ids, which show only if galaxies occur twice."""
        id_N = self.id_N.float()
        rounded_NN = (id_N[:, None] == id_N) & ~torch.eye(len(id_N), dtype=torch.bool)
        return [
            (self.mean(self.raw), _SAME),
            (self.mean(self.filled(self.copy_NN & ~self.other_rank_NN, -torch.inf)), _HERE),
            (self.mean(self.filled(rounded_NN, -torch.inf)), _DIGITS),
        ]

    def mistakes_with_masks(self) -> list[tuple[Tensor, str]]:
        """Return the values of tables that leave out, or count as partners, other entries than the correct ones."""
        share_NN = self.same_id_NN.double() / self.same_id_NN.sum(1, keepdim=True)
        any_copy = []
        for table in self.raw:
            of_copies_N = table.masked_fill(~self.same_id_NN, -torch.inf).logsumexp(1)
            any_copy.append((table.logsumexp(1) - of_copies_N).mean())
        own_rank_only = self.masked[1].masked_fill(self.other_rank_NN, -torch.inf)
        return [
            (torch.tensor(torch.inf), f"Infinite: {_OUT}"),
            (self.mean(self.filled(self.same_id_NN, -1e9)), f"Nearly infinite: {_OUT}"),
            (self.mean(self.filled(self.same_id_NN, 0.0)), _BACK),
            (self.mean(self.filled(self.copy_NN, 0.0)), _ZERO),
            (_mean_loss(self.raw, share_NN), _NEITHER),
            (_mean_loss(self.raw, self.same_id_NN.double()), _NEITHER),
            (torch.stack(any_copy).mean(), _NEITHER),
            (self._loss_of_views(), _VIEWS),
            (self.mean([self.masked[0], own_rank_only]), _TRANSPOSED),
        ]

    def _loss_of_views(self) -> Tensor:
        """Return the loss of the chapter's views, where each sample has 2N - 1 candidates."""
        embeddings = torch.cat((F.normalize(self.image_NP, dim=1), F.normalize(self.spectrum_NP, dim=1)))
        logits = (embeddings @ embeddings.T / self.temperature).fill_diagonal_(-torch.inf)
        logits.masked_fill_(self.copy_NN.repeat(2, 2), -torch.inf)
        n = len(self.id_N)
        return F.cross_entropy(logits, torch.cat((self.partner_N + n, self.partner_N)))

    def mistakes_with_rows(self) -> list[tuple[Tensor, str]]:
        """Return the values of answers that drop all rows of galaxies that occur twice."""
        single_N = ~self.copy_NN.any(1)
        mistakes = []
        for tables in (self.masked, self.raw, self.filled(~single_N, -torch.inf)):
            losses = [F.cross_entropy(table, self.partner_N, reduction="none") for table in tables]
            loss_N = torch.stack(losses).mean(0)
            of_rank = [loss_N[(self.rank_N == rank) & single_N] for rank in self.rank_N.unique()]
            mean_of_means = torch.stack([losses_of_rank.mean() for losses_of_rank in of_rank]).nanmean()
            mistakes.append((mean_of_means, _ROWS))
            mistakes.append((torch.cat(of_rank).sum() / len(self.id_N), _ROWS))
            mistakes.append((torch.cat(of_rank).mean(), _ROWS))
        return mistakes


def _run(fn: Callable, world_size: int, repeated: bool, temperature: float) -> tuple[Tensor, list[Tensor]]:
    """Return the mean over the ranks of the answer's losses, and of the gradients of both weights."""
    results = run_on_ranks(_loss_on_rank, world_size, fn, repeated, temperature)
    for loss, gradients in results:
        if not torch.is_tensor(loss) or loss.ndim:
            raise Wrong("a scalar tensor", loss, "Return the loss: one number, as a tensor.")
        if any(gradient is None for gradient in gradients):
            hint = "No gradient arrives at the weights: gathering passes none by itself."
            raise Wrong("a gradient of the weights of images and spectra", None, hint)
    mean_loss = torch.stack([loss for loss, _ in results]).mean()
    of_weight = zip(*(gradients for _, gradients in results), strict=True)
    return mean_loss, [torch.stack(gradients).mean(0) for gradients in of_weight]


def _check(
    fn: Callable,
    world_size: int = 2,
    repeated: bool = False,
    temperature: float = 0.5,
    with_gradients: bool = True,
) -> None:
    """The mean over the ranks of the losses, and of their gradients, must be those of one process."""
    loss, gradients = _run(fn, world_size, repeated, temperature)
    expected_loss, expected_gradients = _in_one_process(world_size, repeated, temperature)
    tables = _Tables(world_size, repeated, temperature)
    mistakes = tables.mistakes()
    if repeated:
        mistakes += tables.mistakes_with_ids()
    mistakes += tables.mistakes_with_masks() + tables.mistakes_with_rows()
    expect_close(loss, expected_loss, "The mean over ranks is to be the loss of one process.", mistakes, **_CLOSE)
    if not with_gradients:
        return
    _, all_detached = _in_one_process(world_size, repeated, temperature, "all")
    _, others_detached = _in_one_process(world_size, repeated, temperature, "other ranks")
    for gradient, expected, without_all, without_others in zip(
        gradients, expected_gradients, all_detached, others_detached, strict=True
    ):
        averaged = without_all + (expected - without_all) / world_size
        mistakes = [
            (without_all, _CUT),
            (without_others, _CUT),
            (averaged, _SMALL),
            (world_size * expected, _TIMES),
            (world_size**2 * expected, _TIMES),
            (expected / world_size, _WHOLE),
        ]
        hint = "The mean of the ranks' gradients is to be that of one process; the value is right."
        expect_close(gradient, expected, hint, mistakes, **_CLOSE)


def _check_repeated(fn: Callable) -> None:
    """A galaxy that two ranks have, or one rank has twice"""
    _check(fn, 2, repeated=True)
    _check(fn, 3, repeated=True)


EXERCISE = Exercise(
    name="infonce_over_ranks",
    chapter="22",
    cases=(
        case("One rank: the loss of its own galaxies", _check, 1, with_gradients=False),
        case("Two ranks: the mean of their losses is that of one process", _check, with_gradients=False),
        case("Two ranks: the mean of their gradients, too", _check),
        case("Three ranks, another temperature", _check, 3, temperature=0.2),
        _check_repeated,
    ),
    hints=(
        "On which ranks does the loss depend on the embeddings of this rank? How does this rank get their gradients?",
        "Which entries of the table are partners, which are negatives, and which are neither?",
        "Count the means: over the galaxies of a rank, over both ways, and over the ranks (DDP). Nothing else divides.",
    ),
    code=("logits.masked_fill(same_galaxy & ~partner, -torch.inf)",),
    deadline_s=180.0,
)
