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
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dltutorial.config import Preset
from dltutorial.engine.distributed import data_rank, data_world_size, sum_over_ranks
from dltutorial.engine.forecasting import squared_error
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task, seeded
from dltutorial.errors import DataError
from dltutorial.science import cases

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


def constants(settings_BP: Tensor) -> Tensor:
    """The constants (B, P) of settings: the ends of their ranges at 0 and 1, and beyond them outside."""
    low_P, high_P = (torch.tensor(ends, device=settings_BP.device).log() for ends in (LEAST, MOST))
    return (low_P + settings_BP * (high_P - low_P)).exp()


def simulate(settings_BP: Tensor, n_points: int = N_POINTS, n_steps: int = N_STEPS) -> Tensor:
    """u at time 1, shape (B, X): all runs side by side, differentiable.

    Strang's splitting: half a step of diffusion, exact in cosines; reaction by Heun's method; half a step again.
    """
    device, dt = settings_BP.device, 1 / n_steps
    *rates_2B1, growth_B1, death_B1 = constants(settings_BP).split(1, 1)
    to_XK, waves_K = cosines(n_points).to(device), math.pi * torch.arange(n_points, device=device)
    fade_2BK = torch.stack([torch.exp(-dt / 2 * rate_B1 * waves_K**2) for rate_B1 in rates_2B1])
    u_BX = torch.exp(-((points(n_points).to(device) / 0.1) ** 2)).expand(len(settings_BP), -1)
    state_2BX = torch.stack([u_BX, torch.ones_like(u_BX)])

    def react(state_2BX: Tensor) -> Tensor:
        u_BX, n_BX = state_2BX
        grown_BX = growth_B1 * u_BX**2 * n_BX
        return torch.stack([grown_BX - death_B1 * u_BX, -grown_BX])

    for _ in range(n_steps):
        state_2BX = ((state_2BX @ to_XK) * fade_2BK) @ to_XK.T
        first_2BX = react(state_2BX)
        state_2BX = state_2BX + dt / 2 * (first_2BX + react(state_2BX + dt * first_2BX))
        state_2BX = ((state_2BX @ to_XK) * fade_2BK) @ to_XK.T
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
    plan = cases.Simulated(recipe.samples)
    n_bytes = 4 * (plan.samples + plan.n_valid) * (N_POINTS + len(CONSTANTS))
    return cases.kept("surrogate", plan, lambda folder: _make(plan, folder), n_bytes, progress)


def _make(plan: cases.Simulated, folder: Path) -> None:
    generator = torch.Generator().manual_seed(plan.seed)
    for split, n in (("train", plan.samples), ("valid", plan.n_valid)):
        settings_NP = torch.rand(n, len(CONSTANTS), generator=generator)
        runs = {"settings": settings_NP, "tensor": torch.cat([simulate(part) for part in settings_NP.split(1000)])}
        cases.write(folder / f"{split}.h5", runs | {"x-coordinate": points(N_POINTS)})


def make_task(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe on a folder of runs. DataError: files or settings that cannot be; less than a batch."""
    files = [Path(folder) / f"{split}.h5" for split in ("train", "valid")]
    train = list(map(torch.from_numpy, cases.arrays(files[0], settings="NP", tensor="NX")))
    (n, n_constants), n_points = train[0].shape, train[1].shape[1]
    shapes = {"settings": f"N{n_constants}", "tensor": f"N{n_points}"}
    valid = list(map(torch.from_numpy, cases.arrays(files[1], **shapes)))
    if not (valid[1] != valid[1][0]).any():
        raise DataError(f"{files[1]}: all runs are alike, and so is their mean, with which one compares; add others")
    low, high = torch.cat([train[0], valid[0]]).aminmax()
    if low < 0 or high > 1:
        raise DataError(f"{folder}: settings from {low:g} to {high:g}; scale them to 0 … 1")
    return Task(
        seeded(lambda: Surrogate(n_constants, n_points, recipe.dim, recipe.depth), recipe),
        cases.feed(n, lambda rows, _: tuple(part[rows] for part in train), recipe),
        squared_error,
        lambda model: scores(model, valid[0], valid[1], recipe),
        data_id=cases.digest(files),
    )


@torch.no_grad()
def scores(model: nn.Module, settings_NP: Tensor, profiles_NX: Tensor, recipe: Recipe) -> dict[str, float]:
    """The root mean squared error, and that as a share of the deviation from the mean profile: ranks share the runs."""
    mine, device = slice(data_rank(recipe), None, data_world_size(recipe)), next(model.parameters()).device
    guess_NX, truth_NX = model(settings_NP[mine].to(device)).double(), profiles_NX[mine].to(device).double()
    mean_X = profiles_NX.double().mean(0).to(device)  # in float32 squares of what is small are 0
    errors_2 = torch.stack([(guess_NX - truth_NX).square().sum(), (mean_X - truth_NX).square().sum()])
    error, spread = (sum_over_ranks(errors_2) / profiles_NX.numel()).sqrt().tolist()
    return {"valid/rmse": error, "valid/rmse_ratio_to_mean": error / spread}
