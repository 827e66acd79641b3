"""Cosmology from the distribution of matter: a 3-D convolutional network like CosmoFlow's, its boxes cut over ranks.

In: a recipe and a folder with ``train/*.h5`` and ``valid/*.h5``, one box a file, as CosmoFlow's HDF5 files are
(mlcommons/hpc, cosmoflow): ``full`` (side, side, side, 4), int16, particles a cell at four redshifts, and ``unitPar``
(4,), what the universe was made with, each between −1 and 1. Out: a ``Task``: the second from the first.

Simulated boxes are lognormal: a Gaussian field with the linear power spectrum of Bardeen et al. 1986 (BBKS), its
exponential, and particles drawn from it (Coles and Jones 1991). So what is in them beyond the spectrum is simple.

With ``context`` each box is cut into slabs, one a rank. Before each convolution neighbours send each other a plane
(``Halo``); behind the last one all ranks have all. Each rank reads whole boxes, and keeps its slab.

Legend: B boxes, C channels, D × H × W cells of a box or a slab, P parameters.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import machine
from dltutorial.config import Preset, Recipe
from dltutorial.data import formats, sampling
from dltutorial.errors import DataError, RecipeError
from dltutorial.parallel.tensor import GatherTokens
from dltutorial.science import cases
from dltutorial.train.distributed import data_rank, data_world_size, sum_over_ranks, tells_of_data
from dltutorial.train.task import Task

SCORE = "valid/mae"
PARAMETERS = {"omegaM": (0.3, 0.1), "sigma8": (0.8, 0.2), "ns": (0.96, 0.16), "H0": (70.0, 10.0)}  # middle, ± reach
SCALE_FACTORS = (1.0, 0.8, 0.6, 0.45)  # 1 / (1 + redshift)
CELL_MPC_H = 8.0
PARTICLES = 4.0  # a cell, on average
NETWORKS = ("mean", "published")
SHAPES = {"smoke": (16, 8, 3), "laptop": (32, 16, 4)}  # cells along an edge, channels of the first layer, layers
_PUBLISHED = (128, 32, 5)
DEFAULTS = {
    "smoke": {"samples": 1000, "global_batch_size": 32, "steps": 240, "learning_rate": 4e-3},
    "laptop": {"samples": 4000, "global_batch_size": 32, "steps": 2000, "learning_rate": 4e-3},
    "gpu": {"samples": 512, "global_batch_size": 16, "steps": 500, "learning_rate": 1e-3, "network": "published"},
    "cluster": {"samples": 2048, "global_batch_size": 64, "steps": 1000, "learning_rate": 1e-3, "network": "published"},
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that decides the simulated boxes."""

    samples: int
    n_valid: int
    side: int
    seed: int = 0
    version: int = 1


def swap(to_previous: Tensor, to_next: Tensor, group: Any = None) -> tuple[Tensor, Tensor]:
    """What the previous and the next rank have sent to this one; zeros where there is no neighbour."""
    rank, n, todo = dist.get_rank(group), dist.get_world_size(group), []
    got = torch.zeros_like(to_previous), torch.zeros_like(to_next)
    for peer, mine, theirs in ((rank - 1, to_previous, got[0]), (rank + 1, to_next, got[1])):
        if 0 <= peer < n:
            place = dist.get_global_rank(group, peer) if group is not None else peer
            todo.append(dist.P2POp(dist.isend, mine.contiguous(), place, group))
            todo.append(dist.P2POp(dist.irecv, theirs, place, group))
    for work in dist.batch_isend_irecv(todo) if todo else ():
        work.wait()
    return got


class Halo(torch.autograd.Function):
    """A slab with one more plane on each side: its neighbours', or zeros at the ends of the box."""

    @staticmethod
    def forward(ctx: Any, x_BCDHW: Tensor, group: Any = None) -> Tensor:
        """Two planes more."""
        ctx.group = group
        below, above = swap(x_BCDHW[:, :, :1].contiguous(), x_BCDHW[:, :, -1:].contiguous(), group)
        return torch.cat((below, x_BCDHW, above), 2)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """The slopes of the planes that were lent go home, and are added there."""
        below, above = swap(slope[:, :, :1].contiguous(), slope[:, :, -1:].contiguous(), ctx.group)
        own = slope[:, :, 1:-1].clone()
        own[:, :, :1] += below
        own[:, :, -1:] += above
        return own, None


class CosmoNet(nn.Module):
    """Convolutions with a pooling behind each, then three dense layers: (B, C, side, side, side) → (B, P).

    ``mean`` averages over space before the dense layers. ``published`` is MLPerf HPC's: kernels of 2 cells, all places
    side by side for the dense layers; but no dropout, and no limit to what comes out.
    """

    def __init__(self, side: int, width: int, n_layers: int, kind: str = "mean", n_channels: int = 4, n_out: int = 4):
        super().__init__()
        if side % 2**n_layers:
            raise RecipeError(f"boxes of {side} cells an edge cannot be halved {n_layers} times; take other boxes")
        sizes = [n_channels, *(width * 2**n for n in range(n_layers))]
        kernel = 2 if kind == "published" else 3
        self.convolutions = nn.ModuleList(nn.Conv3d(*pair, kernel) for pair in itertools.pairwise(sizes))
        self.kind, self.side, self.group = kind, side, None
        n_flat = sizes[-1] * ((side // 2**n_layers) ** 3 if kind == "published" else 1)
        dense = nn.Linear(n_flat, 128), nn.LeakyReLU(), nn.Linear(128, 64), nn.LeakyReLU(), nn.Linear(64, n_out)
        self.dense = nn.Sequential(*dense)

    def cut_space(self, group: Any) -> None:
        """From now on each rank of the group computes its slab of every box.

        Raises:
            RecipeError: the box does not divide.
        """
        n, least = dist.get_world_size(group), 2 ** len(self.convolutions)
        if self.side % (n * least):
            most = self.side // least
            why = f"boxes of {self.side} cells an edge, halved {len(self.convolutions)} times, do not divide by {n}"
            raise RecipeError(f"context={n} ranks: {why}; take a number that divides {most}")
        self.group = group

    def forward(self, x_BCDHW: Tensor) -> Tensor:
        """Whole boxes in, on every rank; what they say of the parameters out, on every rank."""
        group, pool = self.group, F.max_pool3d if self.kind == "published" else F.avg_pool3d
        if group is not None:
            x_BCDHW = x_BCDHW.chunk(dist.get_world_size(group), 2)[dist.get_rank(group)]
        for convolution in self.convolutions:
            before = convolution.kernel_size[0] - 2  # planes that it reads below its own; above it is one
            x_BCDHW = Halo.apply(x_BCDHW, group) if group is not None else F.pad(x_BCDHW, (0, 0, 0, 0, 1, 1))
            x_BCDHW = convolution(F.pad(x_BCDHW, (before, 1, before, 1))[:, :, 1 - before :])
            x_BCDHW = pool(F.leaky_relu(x_BCDHW), 2)
        if group is not None:  # backward it sums the slopes of n equal losses, and DDP takes the mean of n ranks
            _, C, _, H, W = x_BCDHW.shape
            whole = GatherTokens.apply(x_BCDHW.transpose(1, 2).flatten(2), group)
            x_BCDHW = whole.unflatten(2, (C, H, W)).transpose(1, 2)
        return self.dense(x_BCDHW.flatten(1) if self.kind == "published" else x_BCDHW.mean((2, 3, 4)))


def spectrum(k: Tensor, index: Tensor, shape: Tensor) -> Tensor:
    """The linear power spectrum, not normalised, at k in h/Mpc; the shape is Ω_m h. Bardeen et al. 1986, eq. G3."""
    q = k / shape
    bends = 1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4
    return k**index * (torch.log1p(2.34 * q) / (2.34 * q)) ** 2 * bends**-0.5


def growth(omega: Tensor, a: float) -> Tensor:
    """How large structures are at scale factor a, relative to now, in a flat universe. Carroll et al. 1992, eq. 29."""

    def unscaled(a: float) -> Tensor:
        matter = omega / (omega + (1 - omega) * a**3)
        rest = 1 - matter
        return 2.5 * a * matter / (matter ** (4 / 7) - rest + (1 + matter / 2) * (1 + rest / 70))

    return unscaled(a) / unscaled(1.0)


def simulate(n: int, side: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Boxes (n, 4, side, side, side) of particle counts, and what they were made with, (n, 4), each in −1 … 1."""
    generator = torch.Generator().manual_seed(seed)
    unit_BP = 2 * torch.rand(n, 4, generator=generator) - 1
    middle_P, reach_P = torch.tensor(list(PARAMETERS.values())).T
    omega, sigma8, index, H0 = (column[:, None, None, None] for column in (middle_P + reach_P * unit_BP).T)
    shape = omega * H0 / 100
    k = torch.logspace(-3, 1, 400)[None, None, None]
    ball = 3 * (torch.sin(8 * k) - 8 * k * torch.cos(8 * k)) / (8 * k) ** 3  # of 8 Mpc/h, which defines sigma8
    of_log_k = spectrum(k, index, shape) * ball**2 * k**3 / (2 * math.pi**2)
    variance = torch.trapezoid(of_log_k, k.log().expand_as(of_log_k), dim=-1)[..., None]
    turns, half = torch.fft.fftfreq(side, CELL_MPC_H), torch.fft.rfftfreq(side, CELL_MPC_H)
    k = 2 * math.pi * torch.sqrt(turns[:, None, None] ** 2 + turns[:, None] ** 2 + half**2)
    k[0, 0, 0] = 1
    power = spectrum(k, index, shape) * sigma8**2 / variance / CELL_MPC_H**3
    power[:, 0, 0, 0] = 0
    noise = torch.fft.rfftn(torch.randn(n, side, side, side, generator=generator), dim=(1, 2, 3))
    now_BDHW = torch.fft.irfftn(noise * power.sqrt(), s=(side,) * 3, dim=(1, 2, 3))
    counts = []
    for a in SCALE_FACTORS:
        field = now_BDHW * growth(omega, a)
        density = torch.exp(field - field.var((1, 2, 3), keepdim=True) / 2)
        counts.append(torch.poisson(PARTICLES * density, generator=generator))
    return torch.stack(counts, 1).clamp(max=2**15 - 1), unit_BP


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs."""
    recipe = cases.recipe_of(base, DEFAULTS, knobs)
    recipe.require(recipe.network in ("", *NETWORKS), "network", f"must be one of {', '.join(NETWORKS)}")
    return recipe


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of simulated boxes."""
    plan = Plan(recipe.samples, max(8, recipe.samples // 4), SHAPES.get(recipe.preset, _PUBLISHED)[0])

    def make(folder: Path) -> None:
        at_once = max(1, 2**22 // plan.side**3)
        for number, (name, n) in enumerate((("train", plan.samples), ("valid", plan.n_valid))):
            for first in range(0, n, at_once):
                seed = plan.seed * 10**6 + number * 10**5 + first
                x_BCDHW, unit_BP = simulate(min(at_once, n - first), plan.side, seed)
                for box, (x_CDHW, unit_P) in enumerate(zip(x_BCDHW, unit_BP, strict=True), first):
                    write(folder / name / f"box_{box:06}.h5", x_CDHW, unit_P)

    size = 8 * plan.side**3 * (plan.samples + plan.n_valid)
    return cases.kept("cosmology", plan, make, size, progress)


def write(file: Path, x_CDHW: Tensor, unit_P: Tensor) -> None:
    """One box in CosmoFlow's layout."""
    file.parent.mkdir(exist_ok=True)
    middle_P, reach_P = np.array(list(PARAMETERS.values())).T
    with h5py.File(file, "w") as out:
        out["full"] = x_CDHW.movedim(0, 3).numpy().astype(np.int16)
        out["unitPar"], out["physPar"] = unit_P.numpy(), middle_P + reach_P * unit_P.numpy()
        out["namePar"] = [name.encode() for name in PARAMETERS]
        out["redshifts"] = [1 / a - 1 for a in SCALE_FACTORS]


def read(file: Path) -> tuple[Tensor, Tensor]:
    """A box (C, D, H, W), log(1 + count), and its parameters (P,).

    Raises:
        DataError: it is no such box, or a parameter is out of range.
    """
    with formats.blaming(file), h5py.File(file) as found:
        if not {"full", "unitPar"} <= set(found) or found["full"].ndim != 4 or len(set(found["full"].shape[:3])) > 1:
            raise DataError(f"{file} has no cube full (side, side, side, C) and unitPar; see science/cosmology.py")
        counts, unit = found["full"][:], found["unitPar"][:].astype(np.float32)
    if not np.isfinite(counts).all() or counts.min() < 0:
        raise DataError(f"{file} holds NaN or less than no particles in a cell; leave it out")
    if not (np.abs(unit) <= 1.001).all():
        raise DataError(f"{file}: unitPar {unit.tolist()} is not between -1 and 1; scale it")
    return torch.from_numpy(np.log1p(counts.astype(np.float32))).movedim(3, 0), torch.from_numpy(unit)


def even(x: Tensor) -> Tensor:
    """What the network is given: log(1 + count), so that a usual cell has about 0, and a deviation of about 1."""
    return (x - 1.2) / 0.9


def boxes(folder: Path, name: str, most: int = 0) -> list[Path]:
    """The files of a part.

    Raises:
        DataError: there are none.
    """
    found = sorted(file for file in (Path(folder) / name).glob("*") if file.suffix in (".h5", ".hdf5"))
    if not found:
        raise DataError(f"{Path(folder) / name} has no box (*.h5, *.hdf5); see science/cosmology.py for the layout")
    return found[: most or None]


def turned(x_CDHW: Tensor, seed: int) -> Tensor:
    """A box mirrored and turned, one of the 48 ways, as its seed says."""
    draw = torch.Generator().manual_seed(seed)
    order = (torch.randperm(3, generator=draw) + 1).tolist()
    mirrored = [axis for axis in (1, 2, 3) if torch.rand((), generator=draw) < 0.5]
    return x_CDHW.permute(0, *order).flip(mirrored)


def make_task(recipe: Recipe, folder: Path) -> Task:
    """The network on these boxes, with the mean squared error of the parameters.

    Raises:
        DataError: see ``boxes`` and ``read``; fewer boxes than a batch takes.
        RecipeError: boxes that cannot be halved so often.
    """
    train, valid = boxes(folder, "train", recipe.samples), boxes(folder, "valid")
    first, unit_P = read(train[0])
    _, width, n_layers = SHAPES.get(recipe.preset, _PUBLISHED)
    sampling.endless(len(train), recipe.global_batch_size)  # refuses a batch that is too large
    device = machine.device() if recipe.device == "auto" else recipe.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        kind = recipe.network or NETWORKS[0]
        model = CosmoNet(first.shape[1], width, n_layers, kind, len(first), len(unit_P)).to(device)

    def load(indices: list[int], seeds_B: Tensor) -> tuple[Tensor, ...]:
        pairs = [read(train[index]) for index in indices]
        x_BCDHW = [turned(x, seed) for (x, _), seed in zip(pairs, seeds_B.tolist(), strict=True)]
        return even(torch.stack(x_BCDHW)), torch.stack([unit for _, unit in pairs])

    def data(skip: int) -> Iterator[tuple[Tensor, ...]]:
        return cases.batches(len(train), load, recipe, skip)

    return Task(
        model,
        data,
        lambda model, x_BCDHW, unit_BP: F.mse_loss(model(x_BCDHW), unit_BP),
        lambda model: scores(model, valid, recipe),
        data_id=f"{len(train)}-{first.double().sum().item():.6e}",
        check_data=lambda: [read(file) for file in (*train, *valid)],
    )


@torch.no_grad()
def scores(model: nn.Module, files: list[Path], recipe: Recipe, batch: int = 16) -> dict[str, float]:
    """Mean absolute error in units of ``unitPar``, and R² of each parameter. Ranks share the boxes; all get the same.

    Each call of the model may be a message, so all make as many: who has none left repeats the last.
    """
    parts, n = torch.arange(len(files)).split(batch), data_world_size(recipe)
    device, found = next(model.parameters()).device, None
    for turn in range(data_rank(recipe), -(-len(parts) // n) * n, n):
        indices = parts[min(turn, len(parts) - 1)]
        x, unit = zip(*(read(files[index]) for index in indices.tolist()), strict=True)
        told_BP = model(even(torch.stack(x)).to(device)).float()
        found = torch.zeros(2, len(files), told_BP.shape[1], device=device) if found is None else found
        if turn < len(parts) and tells_of_data(recipe):
            found[:, indices.to(device)] = torch.stack((told_BP, torch.stack(unit).to(device)))
    assert found is not None
    told_NP, unit_NP = sum_over_ranks(found).cpu().double()
    r2_P = 1 - (told_NP - unit_NP).square().mean(0) / unit_NP.var(0, correction=0)
    names = PARAMETERS if len(PARAMETERS) == len(r2_P) else range(len(r2_P))
    by_name = {f"valid/r2_{name}": r2 for name, r2 in zip(names, r2_P.tolist(), strict=True)}
    return {SCORE: (told_NP - unit_NP).abs().mean().item(), **by_name}


def notes(recipe: Recipe, folder: Path) -> list[str]:
    """Nothing but what the score means."""
    return ["a guess of the middle has a mean absolute error of 0.5, CosmoFlow's target is 0.124 (MLPerf HPC)"]
