"""A physics-informed network that finds the constants of an equation: an inverse problem.

A solute c in a channel, carried by a flow a and spread by diffusion b, unknown both:

    c_t + a c_x = b c_xx,      0 ≤ x ≤ 1,      c(0, t) = 0,      c(1, t) = 1

From c = x + sin(2πx) it settles to (exp(x a/b) - 1)/(exp(a/b) - 1), which knows a/b alone. The network is fitted to
noisy observations and, at random points, to the equation; a and b are two weights more. Raissi, Perdikaris and
Karniadakis 2019 (doi:10.1016/j.jcp.2018.10.045).

Files: ``train.h5`` and ``valid.h5`` with ``points`` (N, 2), x and t, and ``c`` (N,), float32; ``train.h5`` may have the
attributes ``a`` and ``b``, the true constants. ``--network settled`` simulates observations from t = 2 on, ``watched``
from 0.

Legend: N observations, B in a batch, X cells, D width, J = 4 rows: a value, its ∂x, ∂xx and ∂t.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dltutorial.config import Preset
from dltutorial.data import formats
from dltutorial.engine.distributed import data_rank, data_world_size, sum_over_ranks
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task, seeded
from dltutorial.errors import DataError
from dltutorial.science import cases

SCORE = "valid/rmse"
TRUE = {"a": 1.0, "b": 0.2}
START = {"watched": 0.0, "settled": 2.0}  # time of the first observation
LASTS, NOISE = 0.25, 0.01
WEIGHT = 0.01  # of the equation beside the observations
_DEFAULTS = {
    "smoke": {"samples": 512, "global_batch_size": 128, "steps": 2000, "learning_rate": 5e-3, "dim": 32, "depth": 3},
    "gpu": {"samples": 100_000, "global_batch_size": 16_384, "steps": 20_000, "learning_rate": 2e-3, "dim": 256,
            "depth": 6},
}  # fmt: skip
_DEFAULTS["cluster"] = _DEFAULTS["gpu"]


def solve(a: float, b: float, times: Tensor, n_cells: int = 200) -> Tensor:
    """c (T, X) at the ends of n cells and at these times: central differences, exact in time; float64."""
    x_X = torch.linspace(0, 1, n_cells + 1, dtype=torch.float64)
    right, left = (torch.diag(torch.ones_like(x_X[1:]), side) for side in (1, -1))
    rate_XX = b * n_cells**2 * (right + left - 2 * torch.eye(len(x_X))) - a * n_cells / 2 * (right - left)
    rate_XX[[0, -1]] = 0  # the walls stay as they are
    begin_X = x_X + torch.sin(2 * math.pi * x_X)
    return torch.stack([torch.linalg.matrix_exp(rate_XX * time) @ begin_X for time in times.double()])


def observe(kind: str, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (N, 2), at random in space, at 65 times, and c (N,) there with noise."""
    generator = torch.Generator().manual_seed(seed)
    times_T = START[kind] + torch.linspace(0, LASTS, 65)
    c_TX = solve(TRUE["a"], TRUE["b"], times_T)
    t_N = torch.randint(len(times_T), (n,), generator=generator)
    x_N = torch.randint(c_TX.shape[1], (n,), generator=generator)
    points_N2 = torch.stack([x_N / (c_TX.shape[1] - 1), times_T[t_N]], 1)
    return points_N2, c_TX[t_N, x_N].float() + NOISE * torch.randn(n, generator=generator)


class Pinn(nn.Module):
    """c at points (B, 2), its derivatives, and the two constants, which are weights like the others."""

    def __init__(self, begin: float = 0.0, lasts: float = LASTS, dim: int = 32, depth: int = 3) -> None:
        """The weights are random; a and b begin at 0.5."""
        super().__init__()
        self.begin, self.lasts = begin, lasts
        inner = [nn.Linear(dim, dim) for _ in range(depth - 1)]
        self.layers = nn.ModuleList([nn.Linear(2, dim), *inner, nn.Linear(dim, 1)])
        self.constants = nn.Parameter(torch.full((2,), 0.5))

    def forward(self, points_B2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """c (B,), the equation's residual c_t + a c_x - b c_xx (B,), and (a, b).

        Derivatives go forward through the layers beside the value, by the chain rule: no second backward pass.
        """
        zero_B2, scale_2 = torch.zeros_like(points_B2), points_B2.new_tensor([2.0, 2 / self.lasts])
        value_B2 = (points_B2 - points_B2.new_tensor([0.0, self.begin])) * scale_2 - 1
        by_x_2, by_t_2 = torch.diag(scale_2)
        rows_JBD = torch.stack([value_B2, zero_B2 + by_x_2, zero_B2, zero_B2 + by_t_2])
        for layer in self.layers:
            z, z_x, z_xx, z_t = (rows_JBD @ layer.weight.T).to(points_B2.dtype)  # type: ignore[operator]  # the rest is not for 16 bits
            z = z + layer.bias
            if layer is not self.layers[-1]:
                y = torch.tanh(z)
                dy = 1 - y**2
                z, z_x, z_xx, z_t = y, dy * z_x, dy * z_xx - 2 * y * dy * z_x**2, dy * z_t
            rows_JBD = torch.stack([z, z_x, z_xx, z_t])
        c_B, c_x_B, c_xx_B, c_t_B = rows_JBD[..., 0]
        a, b = found = self.constants
        return c_B, c_t_B + a * c_x_B - b * c_xx_B, found


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs; a network is the name of a film."""
    return cases.recipe_of(base, _DEFAULTS, {"weight_decay": 0.0, **knobs}, tuple(START))


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of the simulated observations."""
    plan = cases.Simulated(recipe.samples, kind=recipe.network or "watched")
    return cases.kept("pinn", plan, lambda folder: _make(plan, folder), 12 * (plan.samples + plan.n_valid), progress)


def _make(plan: cases.Simulated, folder: Path) -> None:
    for n, (split, size) in enumerate({"train": plan.samples, "valid": plan.n_valid}.items()):
        points_N2, c_N = observe(plan.kind, size, 2 * plan.seed + n)
        cases.write(folder / f"{split}.h5", {"points": points_N2, "c": c_N}, **TRUE)


def notes(recipe: Recipe, folder: Path) -> list[str]:
    """What such observations cannot tell."""
    (points_N2,) = cases.arrays(Path(folder) / "train.h5", points="N2")
    begin, end = points_N2[:, 1].min(), points_N2[:, 1].max()
    late = "; what has settled tells a/b alone" if begin >= START["settled"] else ""
    return [f"observations from t = {begin:g} to {end:g}{late}"]


def make_task(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe on a folder of observations. DataError: files that cannot be; less than a batch takes."""
    files = [Path(folder) / f"{split}.h5" for split in ("train", "valid")]
    (points_N2, c_N), valid = (list(map(torch.from_numpy, cases.arrays(f, points="N2", c="N"))) for f in files)
    with formats.blaming(files[0]), formats.open_hdf5(files[0]) as data:
        said = {name: np.asarray(data.attrs[name]) for name in TRUE if name in data.attrs}
    if not all(x.size == 1 and x.dtype.kind in "fiu" and np.isfinite(x).all() for x in said.values()):
        found = ", ".join(f"{name} = {x.tolist()!r:.40}" for name, x in said.items())
        raise DataError(f"{files[0]}: its attributes {found} are no two numbers; correct them, or leave them out")
    true = {name: float(x.item()) for name, x in said.items()}
    low_2, high_2 = points_N2.aminmax(dim=0)
    if not (high_2 > low_2).all():
        raise DataError(f"{folder}: all observations are at one x or one t; derivatives need several")
    begin, lasts = low_2[1].item(), (high_2 - low_2)[1].item()

    def picked(indices: list[int], seeds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        draws = [torch.rand(2, generator=torch.Generator().manual_seed(seed)) for seed in seeds.tolist()]
        return points_N2[indices], c_N[indices], low_2 + torch.stack(draws) * (high_2 - low_2)

    return Task(
        seeded(lambda: Pinn(begin, lasts, recipe.dim, recipe.depth), recipe),
        cases.feed(len(c_N), picked, recipe),
        misfit,
        lambda model: scores(model, valid[0], valid[1], true, recipe),
        data_id=cases.digest(files),
    )


def misfit(model: nn.Module, points_B2: Tensor, c_B: Tensor, inside_B2: Tensor) -> Tensor:
    """Mean squared: of the observations, in their noise, and of the equation at as many points inside, weighted."""
    found_B, residual_B, _ = model(torch.cat([points_B2, inside_B2]))
    B = len(c_B)
    return (found_B[:B] - c_B).square().mean() + WEIGHT * residual_B[B:].square().mean()


@torch.no_grad()
def scores(model: nn.Module, points_N2: Tensor, c_N: Tensor, true: Mapping, recipe: Recipe) -> dict[str, float]:
    """The error on other observations, the constants, and where they are known how far off, as a share; of 0 in all."""
    mine, device = slice(data_rank(recipe), None, data_world_size(recipe)), next(model.parameters()).device
    found_N, _, constants = model(points_N2[mine].to(device))
    error = sum_over_ranks((found_N - c_N[mine].to(device)).square().sum()) / len(c_N)
    named = dict(zip(TRUE, constants.tolist(), strict=True))
    off = {f"valid/{name}_error": abs(named[name] - value) / (abs(value) or 1) for name, value in true.items()}
    return {SCORE: error.sqrt().item(), **{f"valid/{name}": value for name, value in named.items()}, **off}
