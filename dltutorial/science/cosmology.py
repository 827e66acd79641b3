"""Cosmology from the distribution of matter: a 3-D convolutional network like CosmoFlow's, its boxes cut over ranks.

In: a recipe and a folder with ``train/*.h5`` and ``valid/*.h5``, one box a file, as CosmoFlow's HDF5 files are, cut to
128 cells an edge (mlcommons/hpc, cosmoflow): ``full`` (side, side, side, 4), int16, particles a cell at four redshifts,
and ``unitPar`` (4,), what the universe was made with, each from −1 to 1. Out: a ``Task``: the second from the first.

Simulated boxes are lognormal: a Gaussian field with the linear power spectrum of Bardeen et al. 1986 (BBKS), its
exponential, and particles drawn from it (Coles and Jones 1991). So what is in them beyond the spectrum is simple.

With ``context`` each box is cut into slabs, one a rank. Before each convolution neighbours send each other a plane
(``Halo``); behind the last one all ranks have all. Each rank reads whole boxes, and keeps its slab.

Legend: B boxes, C channels, D × H × W cells of a box or a slab, P parameters.
"""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.config import Preset
from dltutorial.engine.distributed import sum_over_ranks
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task, seeded
from dltutorial.errors import DataError, RecipeError
from dltutorial.parallel.tensor import GatherTokens
from dltutorial.science import cases

SCORE = "valid/mae"
PARAMETERS = {"omegaM": (0.3, 0.1), "sigma8": (0.8, 0.2), "ns": (0.96, 0.16), "H0": (70.0, 10.0)}  # middle, ± reach
SCALE_FACTORS = (1.0, 0.8, 0.6, 0.45)  # 1 / (1 + redshift)
CELL_MPC_H = 8.0
PARTICLES = 4.0  # a cell, on average
NETWORKS = ("mean", "published")
# Cells along an edge, channels of the first layer, layers.
SHAPES = {"smoke": (16, 8, 3), "laptop": (32, 16, 4), "gpu": (128, 32, 5), "cluster": (128, 32, 5)}
_SMOKE: dict[str, Any] = {"samples": 1000, "global_batch_size": 32, "steps": 240, "learning_rate": 4e-3}
_GPU = {**_SMOKE, "network": "published", "samples": 512, "global_batch_size": 16, "steps": 500, "learning_rate": 1e-3}
_CLUSTER = {**_GPU, "samples": 2048, "global_batch_size": 64, "steps": 1000}
_DEFAULTS = {"smoke": _SMOKE, "laptop": {**_SMOKE, "samples": 4000, "steps": 2000}, "gpu": _GPU, "cluster": _CLUSTER}


def swap(x_BCDHW: Tensor, group: Any = None) -> tuple[Tensor, Tensor]:
    """The last plane of the previous rank's slab, and the first of the next one's; zeros where nobody is."""
    rank, n, todo = dist.get_rank(group), dist.get_world_size(group), []
    mine = x_BCDHW[:, :, :1].contiguous(), x_BCDHW[:, :, -1:].contiguous()
    theirs = torch.zeros_like(mine[0]), torch.zeros_like(mine[1])
    for to, sent, received in zip((rank - 1, rank + 1), mine, theirs, strict=True):
        if 0 <= to < n:
            place = dist.get_global_rank(group, to) if group is not None else to
            todo += [dist.P2POp(dist.isend, sent, place, group), dist.P2POp(dist.irecv, received, place, group)]
    for work in dist.batch_isend_irecv(todo) if todo else ():
        work.wait()
    return theirs


class Halo(torch.autograd.Function):
    """A slab with one more plane on each side: its neighbours', or zeros at the ends of the box."""

    @staticmethod
    def forward(ctx: Any, x_BCDHW: Tensor, group: Any = None) -> Tensor:
        """Two planes more."""
        ctx.group = group
        below, above = swap(x_BCDHW, group)
        return torch.cat((below, x_BCDHW, above), 2)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """The slopes of the planes that were lent go home, and are added there."""
        below, above = swap(slope, ctx.group)
        own = slope[:, :, 1:-1].clone()
        own[:, :, :1] += below
        own[:, :, -1:] += above
        return own, None


class CosmoNet(nn.Module):
    """Convolutions with a pooling behind each, then three dense layers: (B, C, side, side, side) → (B, P).

    ``mean`` averages, in pools and over space before the dense layers. ``published`` is MLPerf HPC's since its version
    1.0: maxima in pools, all places side by side for the dense layers; but no dropout, and no limit to what comes out.
    """

    def __init__(self, side: int, width: int, n_layers: int, kind: str = "mean", n_channels: int = 4):
        super().__init__()
        if side % 2**n_layers:
            raise RecipeError(f"boxes of {side} cells an edge cannot be halved {n_layers} times; take other boxes")
        sizes = [n_channels, *(width * 2**n for n in range(n_layers))]
        self.convolutions = nn.ModuleList(nn.Conv3d(*pair, 3, padding=(0, 1, 1)) for pair in itertools.pairwise(sizes))
        self.kind, self.side, self.group = kind, side, None
        n_flat = sizes[-1] * ((side // 2**n_layers) ** 3 if kind == "published" else 1)
        last = nn.Linear(64, len(PARAMETERS))
        self.dense = nn.Sequential(nn.Linear(n_flat, 128), nn.LeakyReLU(), nn.Linear(128, 64), nn.LeakyReLU(), last)

    def cut_space(self, group: Any) -> None:
        """From now on each rank of the group computes its slab of every box. RecipeError: the box does not divide."""
        n, least = dist.get_world_size(group), 2 ** len(self.convolutions)
        if self.side % (n * least):
            why = f"boxes of {self.side} cells an edge, halved {len(self.convolutions)} times, do not divide by {n}"
            raise RecipeError(f"context={n} ranks: {why}; take a number that divides {self.side // least}")
        self.group = group

    def forward(self, x_BCDHW: Tensor) -> Tensor:
        """Whole boxes in, on every rank; what they say of the parameters out, on every rank."""
        group, pool = self.group, F.max_pool3d if self.kind == "published" else F.avg_pool3d
        if group is not None:
            x_BCDHW = x_BCDHW.chunk(dist.get_world_size(group), 2)[dist.get_rank(group)]
        for convolution in self.convolutions:
            x_BCDHW = Halo.apply(x_BCDHW, group) if group is not None else F.pad(x_BCDHW, (0, 0, 0, 0, 1, 1))
            x_BCDHW = pool(F.leaky_relu(convolution(x_BCDHW)), 2)
        if group is not None:  # backward it sums the slopes of n equal losses, and DDP takes the mean of n ranks
            x_BCDHW = GatherTokens.apply(x_BCDHW.transpose(1, 2), group).transpose(1, 2)
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
        mean_count = PARTICLES * torch.exp(field - field.var((1, 2, 3), keepdim=True) / 2)
        counts.append(torch.poisson(mean_count, generator=generator))
    return torch.stack(counts, 1).clamp(max=2**15 - 1), unit_BP


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs."""
    return cases.recipe_of(base, _DEFAULTS, knobs, NETWORKS)


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of simulated boxes."""
    plan = cases.Simulated(recipe.samples, max(8, recipe.samples // 4), SHAPES[recipe.preset][0])

    def make(folder: Path) -> None:
        at_once = max(1, 2**22 // plan.size**3)
        for number, (name, n) in enumerate((("train", plan.samples), ("valid", plan.n_valid))):
            for first in range(0, n, at_once):
                made = simulate(min(at_once, n - first), plan.size, plan.seed + number * 10**5 + first)
                for box, (x_CDHW, unit_P) in enumerate(zip(*made, strict=True), first):
                    write(folder / name / f"box_{box:06}.h5", x_CDHW, unit_P)

    return cases.kept("cosmology", plan, make, 8 * plan.size**3 * (plan.samples + plan.n_valid), progress)


def write(file: Path, x_CDHW: Tensor, unit_P: Tensor) -> None:
    """One box in CosmoFlow's layout."""
    file.parent.mkdir(exist_ok=True)
    middle_P, reach_P = np.array(list(PARAMETERS.values())).T
    content = {"full": x_CDHW.movedim(0, 3).numpy().astype(np.int16), "unitPar": unit_P}
    content |= {"physPar": middle_P + reach_P * unit_P.numpy(), "namePar": [name.encode() for name in PARAMETERS]}
    cases.write(file, content | {"redshifts": [1 / a - 1 for a in SCALE_FACTORS]})


def read(file: Path, shape: str = "SSSC") -> tuple[Tensor, Tensor]:
    """A box (C, D, H, W), log(1 + count), and its parameters (P,). DataError: it is none, or none of this shape."""
    counts, unit = cases.arrays(file, full=shape, unitPar=str(len(PARAMETERS)))
    if counts.min() < 0 or not counts.any():
        raise DataError(f"{file} holds less than no particles in a cell, or none in all; leave it out")
    if (np.abs(unit) > 1.001).any():
        raise DataError(f"{file}: unitPar {unit.tolist()} is not between -1 and 1; scale it")
    return torch.from_numpy(np.log1p(counts)).movedim(3, 0), torch.from_numpy(unit)


def even(x: Tensor) -> Tensor:
    """What the network is given: log(1 + count), so that a usual cell has about 0, and a deviation of about 1."""
    return (x - 1.2) / 0.9


def boxes(folder: Path, name: str, most: int = 0) -> list[Path]:
    """The files of a part. DataError: there are none."""
    return cases.files(Path(folder) / name, "cosmology")[: most or None]


def turned(x_CDHW: Tensor, seed: int) -> Tensor:
    """A box mirrored and turned, one of the 48 ways, as its seed says."""
    draw = torch.Generator().manual_seed(seed)
    order = (torch.randperm(3, generator=draw) + 1).tolist()
    return x_CDHW.permute(0, *order).flip([axis for axis in (1, 2, 3) if torch.rand((), generator=draw) < 0.5])


def make_task(recipe: Recipe, folder: Path) -> Task:
    """The network on these boxes, and the squared error. CourseError: see ``read``, ``CosmoNet``; too few boxes."""
    train, valid = boxes(folder, "train", recipe.samples), boxes(folder, "valid")
    first, _ = read(train[0])
    side, n_channels = first.shape[1], len(first)
    unit_NP = np.stack([cases.arrays(file, unitPar=str(len(PARAMETERS)))[0] for file in valid])
    if still := [name for name, spread in zip(PARAMETERS, np.ptp(unit_NP, 0), strict=True) if not spread]:
        raise DataError(f"{folder}: all {len(valid)} boxes to validate have one {', '.join(still)}; add others")
    net = side, *SHAPES[recipe.preset][1:], recipe.network or NETWORKS[0], n_channels
    shape = f"{side} {side} {side} {n_channels}"

    def load(indices: list[int], seeds_B: Tensor) -> tuple[Tensor, ...]:
        x, unit = zip(*(read(train[index], shape) for index in indices), strict=True)
        x_BCDHW = torch.stack([turned(*pair) for pair in zip(x, seeds_B.tolist(), strict=True)])
        return even(x_BCDHW), torch.stack(unit)

    return Task(
        seeded(lambda: CosmoNet(*net), recipe),
        cases.feed(len(train), load, recipe),
        lambda model, x_BCDHW, unit_BP: F.mse_loss(model(x_BCDHW), unit_BP),
        lambda model: scores(model, valid, recipe, shape),
        data_id=f"{len(train)} {cases.digest([*train, *valid])}",
        check_data=lambda: [read(file, shape) for file in (*train, *valid)],
    )


@torch.no_grad()
def scores(model: nn.Module, files: list[Path], recipe: Recipe, shape: str) -> dict[str, float]:
    """Mean absolute error in units of ``unitPar``, R² of each parameter. Ranks share the boxes; all get the same."""
    device = next(model.parameters()).device
    found = torch.zeros(2, len(files), len(PARAMETERS), device=device)
    for indices, counts in cases.shared(len(files), 16, recipe):
        x, unit = zip(*(read(files[index], shape) for index in indices), strict=True)
        told_BP = model(even(torch.stack(x)).to(device)).float()
        if counts:
            found[:, indices] = torch.stack((told_BP, torch.stack(unit).to(device)))
    told_NP, unit_NP = sum_over_ranks(found).cpu().double()
    r2_P = 1 - (told_NP - unit_NP).square().mean(0) / unit_NP.var(0, correction=0)
    by_name = {f"valid/r2_{name}": r2 for name, r2 in zip(PARAMETERS, r2_P.tolist(), strict=True)}
    return {SCORE: (told_NP - unit_NP).abs().mean().item(), **by_name}
