"""A surrogate: a network that has seen some thousands of simulations, and says what the others would give.

The simulation: bacteria u spread from the middle of a dish, eat a nutrient n, and die without it. They leave rings.

    u_t = D u_xx + r u² n - m u,      n_t = N n_xx - r u² n,      0 ≤ x ≤ 1 (the dish's half), no flux at its ends

It starts with a drop, u = exp(-(x/0.1)²), and n = 1; wanted is u at time 1. A *setting* is where the four constants lie
in their ranges, on a logarithmic scale: 0 … 1. Cao et al. 2016 (doi:10.1016/j.cell.2016.03.006) for rings of bacteria,
Wang et al. 2019 (doi:10.1038/s41467-019-12342-y) for surrogates that screen them.

Files, after PDEBench's 1-D layout (arXiv:2210.07182): ``train.h5`` and ``valid.h5`` with ``tensor`` (N, X), float32,
``x-coordinate`` (X,), and beside them ``settings`` (N, P), float32, in 0 … 1.

Legend: N runs, B in a batch, P constants, X points, K cosines.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from dltutorial import machine, paths
from dltutorial.config import Preset, Recipe
from dltutorial.data import sampling
from dltutorial.errors import CourseError, DataError
from dltutorial.science import cases
from dltutorial.train.distributed import data_rank, data_world_size, sum_over_ranks
from dltutorial.train.forecasting import squared_error
from dltutorial.train.task import Task

SCORE = "valid/rmse"
CONSTANTS = ("spreading", "nutrient's diffusion", "growth", "death")
LEAST, MOST = (2e-3, 1e-3, 20.0, 1.0), (2e-2, 2e-2, 60.0, 8.0)
N_POINTS, N_STEPS = 64, 200
_DEFAULTS = {
    "smoke": {"samples": 2000, "global_batch_size": 64, "steps": 1500, "learning_rate": 3e-3, "dim": 128, "depth": 3},
    "gpu": {"samples": 100_000, "global_batch_size": 1024, "steps": 20_000, "learning_rate": 2e-3, "dim": 1024,
            "depth": 6},
}  # fmt: skip
_DEFAULTS["cluster"] = _DEFAULTS["gpu"]


@dataclass(frozen=True)
class RunsPlan:
    """All that decides the simulated runs."""

    samples: int
    n_valid: int = 500
    seed: int = 0
    version: int = 1


def constants(settings_BP: Tensor) -> Tensor:
    """The constants (B, P) of settings: the ends of their ranges at 0 and 1, and beyond them outside."""
    low_P, high_P = (torch.tensor(ends, device=settings_BP.device).log() for ends in (LEAST, MOST))
    return (low_P + settings_BP * (high_P - low_P)).exp()


def simulate(settings_BP: Tensor, n_points: int = N_POINTS, n_steps: int = N_STEPS) -> Tensor:
    """u at time 1, shape (B, X): all runs side by side, differentiable.

    Strang's splitting: half a step of diffusion, exact in cosines; reaction by Heun's method; half a step again.
    """
    device, dt = settings_BP.device, 1 / n_steps
    spread_B1, feed_B1, growth_B1, death_B1 = constants(settings_BP).split(1, 1)
    x_X, to_XK = points(n_points).to(device), cosines(n_points).to(device)
    waves_K = math.pi * torch.arange(n_points, device=device)
    fades = [torch.exp(-dt / 2 * rate_B1 * waves_K**2) for rate_B1 in (spread_B1, feed_B1)]
    fade_2BK = torch.stack(fades)
    u_BX = torch.exp(-((x_X / 0.1) ** 2)).expand(len(settings_BP), -1)
    state_2BX = torch.stack([u_BX, torch.ones_like(u_BX)])

    def spread(state_2BX: Tensor) -> Tensor:
        return ((state_2BX @ to_XK) * fade_2BK) @ to_XK.T

    def react(state_2BX: Tensor) -> Tensor:
        u_BX, n_BX = state_2BX
        grown_BX = growth_B1 * u_BX**2 * n_BX
        return torch.stack([grown_BX - death_B1 * u_BX, -grown_BX])

    for _ in range(n_steps):
        state_2BX = spread(state_2BX)
        first_2BX = react(state_2BX)
        state_2BX = state_2BX + dt / 2 * (first_2BX + react(state_2BX + dt * first_2BX))
        state_2BX = spread(state_2BX)
    return state_2BX[0]


def points(n: int) -> Tensor:
    """The middles of n cells."""
    return (torch.arange(n) + 0.5) / n


def cosines(n: int) -> Tensor:
    """The orthogonal matrix (X, K) of cosines on these points: ``y @ cosines`` are coefficients, and its transpose."""
    table_XK = torch.cos(math.pi * points(n)[:, None].double() * torch.arange(n)) * math.sqrt(2 / n)
    table_XK[:, 0] /= math.sqrt(2)
    return table_XK.float()


class Surrogate(nn.Module):
    """Settings (B, P) in, profiles (B, X) out: blocks of linear layers, each added to its input."""

    def __init__(self, n_constants: int = 4, n_points: int = N_POINTS, dim: int = 128, depth: int = 3) -> None:
        """The weights are random."""
        super().__init__()
        self.embed, self.head = nn.Linear(n_constants, dim), nn.Linear(dim, n_points)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)) for _ in range(depth)
        )

    def forward(self, settings_BP: Tensor) -> Tensor:
        """What the simulation would give."""
        x_BD = self.embed(2 * settings_BP - 1)
        for block in self.blocks:
            x_BD = x_BD + block(x_BD)
        return self.head(x_BD)


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs; the data tell nothing that it needs."""
    return cases.recipe_of(base, _DEFAULTS, {"weight_decay": 0.0, **knobs})


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of the simulated runs."""
    plan = RunsPlan(recipe.samples)
    n_bytes = 4 * (plan.samples + plan.n_valid) * (N_POINTS + len(CONSTANTS))
    return cases.kept("surrogate", plan, lambda folder: _make(plan, folder), n_bytes, progress)


def _make(plan: RunsPlan, folder: Path) -> None:
    generator = torch.Generator().manual_seed(plan.seed)
    for split, n in (("train", plan.samples), ("valid", plan.n_valid)):
        settings_NP = torch.rand(n, len(CONSTANTS), generator=generator)
        write(folder / f"{split}.h5", settings_NP, torch.cat([simulate(part) for part in settings_NP.split(1000)]))


def write(file: Path, settings_NP: Tensor, profiles_NX: Tensor) -> None:
    """Runs as a file of the layout above, whole or not at all."""
    with paths.atomic(file) as temporary, h5py.File(temporary, "w") as out:
        out["tensor"], out["settings"] = profiles_NX.numpy(), settings_NP.numpy()
        out["x-coordinate"] = points(profiles_NX.shape[1]).numpy()


def read(file: Path) -> tuple[Tensor, Tensor]:
    """Settings (N, P) and profiles (N, X).

    Raises:
        DataError: no such file, other shapes, numbers that are not finite, or settings outside of 0 … 1.
    """
    settings_NP, profiles_NX = arrays(file, "settings", "tensor")
    if settings_NP.ndim != 2 or profiles_NX.ndim != 2 or len(settings_NP) != len(profiles_NX):
        shapes = f"settings {tuple(settings_NP.shape)} and tensor {tuple(profiles_NX.shape)}"
        raise DataError(f"{file}: {shapes}, but they must be (N, P) and (N, X); make it anew")
    if not ((settings_NP >= 0) & (settings_NP <= 1)).all():
        raise DataError(f"{file}: settings from {settings_NP.min():g} to {settings_NP.max():g}; scale them to 0 … 1")
    return settings_NP, profiles_NX


def arrays(file: Path, *names: str) -> list[Tensor]:
    """What an HDF5 file holds under these names, float32.

    Raises:
        DataError: it cannot be read, has no such data, or numbers among them that are not finite.
    """
    try:
        with h5py.File(file) as data:
            found = [torch.from_numpy(np.asarray(data[name][:], np.float32)) for name in names]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); dltutorial/science says how it is to be made") from error
    for name, rows in zip(names, found, strict=True):
        if not rows.isfinite().all():
            row = int((~rows.isfinite()).nonzero()[0, 0])
            raise DataError(f"{file}: row {row} of {name} holds numbers that are not finite; leave it out")
    return found


def notes(recipe: Recipe, folder: Path) -> list[str]:
    """Where what it learns holds."""
    return [f"it learns settings from 0 to 1 of {len(CONSTANTS)} constants; outside of them nothing has taught it"]


def make_task(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe on a folder of runs.

    Raises:
        DataError: files that cannot be, or fewer runs than a batch takes.
    """
    train, valid = read(Path(folder) / "train.h5"), read(Path(folder) / "valid.h5")
    if [part.shape[1] for part in train] != [part.shape[1] for part in valid]:
        raise DataError(f"{folder}: train.h5 and valid.h5 differ in constants or points; make them anew")
    n = min(recipe.samples, len(train[0])) if recipe.samples else len(train[0])
    sampling.endless(n, recipe.global_batch_size)  # refuses a batch that is too large now, not later
    model = seeded(lambda: Surrogate(train[0].shape[1], train[1].shape[1], recipe.dim, recipe.depth), recipe)

    def picked(indices: list[int], seeds: Tensor) -> tuple[Tensor, ...]:
        return tuple(part[indices] for part in train)

    return Task(
        model,
        lambda skip: cases.batches(n, picked, recipe, skip),
        squared_error,
        lambda model: scores(model, *valid, recipe),
        data_id=f"{n} runs, {train[0].double().sum():.9g}, {train[1].double().sum():.9g}",
    )


def seeded(make: Callable[[], nn.Module], recipe: Recipe) -> nn.Module:
    """A model with the recipe's initial weights, on its device.

    Raises:
        CourseError: the recipe asks for cuda and there is none.
    """
    device = machine.device() if recipe.device == "auto" else recipe.device
    if device == "cuda" and not torch.cuda.is_available():
        raise CourseError("device cuda was asked for, but torch sees no CUDA device here; use device=auto")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return make().to(device)


@torch.no_grad()
def scores(model: nn.Module, settings_NP: Tensor, profiles_NX: Tensor, recipe: Recipe) -> dict[str, float]:
    """The root mean squared error, and that as a share of the deviation from the mean profile: ranks share the runs."""
    mine, device = slice(data_rank(recipe), None, data_world_size(recipe)), next(model.parameters()).device
    guess_NX, truth_NX = model(settings_NP[mine].to(device)).float(), profiles_NX[mine].to(device)
    mean_X = profiles_NX.mean(0).to(device)
    errors_2 = torch.stack([(guess_NX - truth_NX).square().sum(), (mean_X - truth_NX).square().sum()])
    error, spread = (sum_over_ranks(errors_2) / profiles_NX.numel()).sqrt().tolist()
    return {"valid/rmse": error, "valid/rmse_ratio_to_mean": error / spread}
