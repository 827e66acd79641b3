"""A sky survey without labels: SimCLR on images of galaxies, and the same network with labels beside it.

In: a recipe and a folder with ``train.h5`` and ``valid.h5``, as the public files of Stein et al. 2021
(georgestein/ssl-legacysurvey) have them: ``images`` (N, C, H, W), float32. Added here are ``labels`` (N,), 1 for a
strong lens and 0 for none. The valid part needs them; the train part with ``network=supervised`` only.
Out: a ``Task``. Two views of each image are to be alike, and unlike the views of all others in the batch, on whichever
rank those lie: Chen et al. 2020 (arXiv:2002.05709), Hayat et al. 2020 (arXiv:2012.13083).

The loss of a batch is no sum over samples: with ``accumulate`` each part is contrasted with itself alone.

Legend: B images of this rank, N of all ranks or in a file, C channels, H × W pixels, F features, P of a projection.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import machine, paths
from dltutorial.config import Preset, Recipe
from dltutorial.data import formats, lenses, sampling
from dltutorial.errors import DataError
from dltutorial.parallel.tensor import GatherTokens
from dltutorial.science import cases
from dltutorial.train.distributed import rank, world_size
from dltutorial.train.task import Task

SCORE = "valid/probe_error"
NETWORKS = ("simclr", "supervised")
N_VALID = 2000
TEMPERATURE = 0.1
SHAPES = {"smoke": (16, 12), "laptop": (32, 24)}  # pixels along an edge, channels of the first layer
_BIG = (32, 64)
DEFAULTS = {
    "smoke": {"samples": 8000, "global_batch_size": 128, "steps": 240, "learning_rate": 3e-3},
    "laptop": {"samples": 24_000, "global_batch_size": 256, "steps": 2000, "learning_rate": 3e-3},
    "gpu": {"samples": 200_000, "global_batch_size": 1024, "steps": 10_000, "learning_rate": 3e-3},
    "cluster": {"samples": 500_000, "global_batch_size": 4096, "steps": 10_000, "learning_rate": 6e-3},
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that decides the simulated images."""

    samples: int
    size: int
    seed: int = 0
    version: int = 1


class Encoder(nn.Module):
    """A small convolutional network: images (B, C, H, W) → features (B, F), F = 4 × width.

    GroupNorm, not BatchNorm: nothing of an image depends on what else is in the batch, or on this rank.
    """

    def __init__(self, n_channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out, stride in ((n_channels, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)):
            layers += [nn.Conv2d(n_in, n_out, 3, stride, 1), nn.GroupNorm(4, n_out), nn.ReLU()]
        self.layers, self.n_features = nn.Sequential(*layers), 4 * width

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Features: the mean over all places."""
        return self.layers(x_BCHW).mean((2, 3))


class WithHead(nn.Module):
    """An encoder, and a head that is thrown away after training: a projection (B, P), or two logits (B, 2)."""

    def __init__(self, encoder: Encoder, network: str = "simclr", n_projected: int = 32) -> None:
        super().__init__()
        n = encoder.n_features
        projection = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n_projected))
        self.encoder, self.head = encoder, projection if network == "simclr" else nn.Linear(n, 2)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """What the loss looks at."""
        return self.head(self.encoder(x_BCHW))


def views(x_BCHW: Tensor, seeds_B: Tensor) -> Tensor:
    """Each image turned, mirrored, shifted, zoomed, brighter or fainter, and noisier, as its own seed says.

    Whatever the batch and the rank, the same image with the same seed gives the same view.
    """
    H, W = x_BCHW.shape[2:]
    drawn, noise = [], []
    for seed in seeds_B.tolist():
        generator = torch.Generator().manual_seed(seed)
        drawn.append(torch.rand(6, generator=generator))
        noise.append(torch.randn(x_BCHW.shape[1:], generator=generator))
    turn_B, zoom_B, mirror_B, bright_B, *shift_B = torch.stack(drawn, 1).to(x_BCHW)
    zoom_B, mirror_B = torch.exp(0.3 * (zoom_B - 0.5)), torch.where(mirror_B < 0.5, -1.0, 1.0)
    cos_B, sin_B = zoom_B * torch.cos(2 * torch.pi * turn_B), zoom_B * torch.sin(2 * torch.pi * turn_B)
    right_B, down_B = (0.2 * (x - 0.5) for x in shift_B)
    rows = [torch.stack((mirror_B * cos_B, -sin_B * H / W, right_B), 1)]
    rows.append(torch.stack((mirror_B * sin_B * W / H, cos_B, down_B), 1))
    places = F.affine_grid(torch.stack(rows, 1), list(x_BCHW.shape), align_corners=False)
    seen_BCHW = F.grid_sample(x_BCHW, places, padding_mode="reflection", align_corners=False)
    brightness_B111 = torch.exp(0.6 * (bright_B - 0.5))[:, None, None, None]
    return seen_BCHW * brightness_B111 + 0.15 * torch.stack(noise).to(x_BCHW)


def info_nce(a_BP: Tensor, b_BP: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """The loss of this rank's 2 B views against all views of all ranks: its mean over ranks is that of one process.

    The slopes of what was gathered are summed over the ranks, so that DDP's mean of gradients is that of one process.
    """
    ab_2BP = F.normalize(torch.stack((a_BP, b_BP)).float(), dim=2)
    ab_2NP = GatherTokens.apply(ab_2BP) if world_size() > 1 else ab_2BP
    B, N = ab_2BP.shape[1], ab_2NP.shape[1]
    mine_B = rank() * B + torch.arange(B, device=a_BP.device)
    with torch.autocast(a_BP.device.type, enabled=False):
        logits = ab_2BP.flatten(0, 1) @ ab_2NP.flatten(0, 1).T / temperature
    itself = torch.zeros_like(logits, dtype=torch.bool)
    itself[torch.arange(2 * B, device=a_BP.device), torch.cat((mine_B, N + mine_B))] = True
    return F.cross_entropy(logits.masked_fill(itself, -torch.inf), torch.cat((N + mine_B, mine_B)))


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs."""
    recipe = cases.recipe_of(base, DEFAULTS, knobs)
    recipe.require(recipe.network in ("", *NETWORKS), "network", f"must be one of {', '.join(NETWORKS)}")
    return recipe


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of simulated images: strong lenses, and galaxies that look like some; see ``data.lenses``."""
    plan = Plan(recipe.samples, SHAPES.get(recipe.preset, _BIG)[0])

    def make(folder: Path) -> None:
        images_NHW, y_N = lenses.simulate(plan.samples + N_VALID, plan.size, plan.seed, "cpu", progress)
        for name, part in (("train", slice(plan.samples)), ("valid", slice(plan.samples, None))):
            with paths.atomic(folder / f"{name}.h5") as temporary, h5py.File(temporary, "w") as file:
                file["images"], file["labels"] = images_NHW[part, None].numpy(), y_N[part].numpy()

    return cases.kept("survey", plan, make, 4 * plan.size**2 * (plan.samples + N_VALID), progress)


def read(file: Path, want_labels: bool) -> tuple[Tensor, Tensor | None]:
    """Images (N, C, H, W) and, if they are wanted or there, labels (N,).

    Raises:
        DataError: no such file, another shape, no labels, labels that are neither 0 nor 1, or one that never occurs.
    """
    with formats.blaming(file), h5py.File(file) as found:
        if "images" not in found or found["images"].ndim != 4:
            raise DataError(f"{file} has no images (N, C, H, W); see dltutorial/science/survey.py for the layout")
        x_NCHW = torch.from_numpy(found["images"][:].astype(np.float32))
        y_N = torch.from_numpy(found["labels"][:].astype(np.int64)) if "labels" in found else None
    if y_N is None:
        if want_labels:
            raise DataError(f"{file} has no labels (N,), which are needed here; add them, 0 or 1")
        return x_NCHW, None
    if len(y_N) != len(x_NCHW):
        raise DataError(f"{file} has {len(x_NCHW)} images and {len(y_N)} labels; make it anew")
    if wrong := sorted(set(y_N.tolist()) - {0, 1}):
        raise DataError(f"{file} has labels out of range: {wrong[0]}, but 0 and 1 are all there are; correct them")
    if want_labels and len(y_N.unique()) < 2:
        raise DataError(f"{file}: class {1 - int(y_N[0])} never occurs, so nothing can be told apart; add some of it")
    return x_NCHW, y_N


def check_finite(folder: Path) -> None:
    """Raises: DataError: an image holds NaN or infinity."""
    for file in (folder / "train.h5", folder / "valid.h5"):
        bad_N = ~read(file, False)[0].flatten(1).isfinite().all(1)
        if bad_N.any():
            raise DataError(f"{file}: image {int(bad_N.nonzero()[0])} holds NaN or infinity; leave it out")


def make_task(recipe: Recipe, folder: Path) -> Task:
    """SimCLR, or with ``network=supervised`` the same encoder with labels, on views of the images.

    Raises:
        DataError: see ``read``; or fewer images than a batch takes.
        RecipeError: parts that are too small to contrast anything in.
    """
    network = recipe.network or NETWORKS[0]
    part = recipe.global_batch_size // (recipe.accumulate if network == "simclr" else 1)
    recipe.require(part >= 2, "global_batch_size", "must be larger: one image alone has no negatives")
    folder = Path(folder)
    x_NCHW, y_N = read(folder / "train.h5", network == "supervised")
    x_NCHW = x_NCHW[: recipe.samples or None]
    valid_NCHW, valid_N = read(folder / "valid.h5", True)
    centre, scale = x_NCHW.nanmean(), x_NCHW[x_NCHW.isfinite()].std()
    x_NCHW, valid_NCHW = (x_NCHW - centre) / scale, (valid_NCHW - centre) / scale
    device = machine.device() if recipe.device == "auto" else recipe.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        encoder = Encoder(x_NCHW.shape[1], SHAPES.get(recipe.preset, _BIG)[1])
        model = WithHead(encoder, network).to(device)
    sampling.endless(len(x_NCHW), recipe.global_batch_size)  # refuses a batch that is too large

    def load(indices: list[int], seeds_B: Tensor) -> tuple[Tensor, ...]:
        second = y_N[indices] if network == "supervised" else views(x_NCHW[indices], seeds_B + 2**32)
        return views(x_NCHW[indices], seeds_B), second

    def data(skip: int) -> Iterator[tuple[Tensor, ...]]:
        return cases.batches(len(x_NCHW), load, recipe, skip)

    return Task(
        model,
        data,
        contrast if network == "simclr" else named,
        lambda model: {SCORE: probe_error(model, valid_NCHW, valid_N)},
        data_id=f"{len(x_NCHW)}-{centre.item():.6e}-{scale.item():.6e}",
        check_data=lambda: check_finite(folder),
    )


def contrast(model: nn.Module, a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """The loss of SimCLR."""
    a_BP, b_BP = model(torch.cat((a_BCHW, b_BCHW))).chunk(2)
    return info_nce(a_BP, b_BP)


def named(model: nn.Module, x_BCHW: Tensor, y_B: Tensor) -> Tensor:
    """The loss with labels."""
    return F.cross_entropy(model(x_BCHW), y_B)


@torch.no_grad()
def probe_error(model: nn.Module, x_NCHW: Tensor, y_N: Tensor, ridge: float = 1e-2) -> float:
    """Share of the second half that a linear probe names wrongly, fitted to the first half, on frozen features."""
    whole = getattr(model, "module", model)
    found: list[Tensor] = []
    hook = whole.encoder.register_forward_hook(lambda layer, given, features: found.append(features.float().cpu()))
    for part_BCHW in x_NCHW.split(500):
        model(part_BCHW.to(next(model.parameters()).device))
    hook.remove()
    f_NF, half = torch.cat(found).double(), len(y_N) // 2
    f_NF = (f_NF - f_NF[:half].mean(0)) / (f_NF[:half].std(0) + 1e-6)
    f_NF = torch.cat((f_NF, torch.ones(len(f_NF), 1, dtype=torch.double)), 1)
    first, signs_N = f_NF[:half], 2.0 * y_N.double() - 1
    square = first.T @ first + ridge * half * torch.eye(first.shape[1], dtype=torch.double)
    weights_F = torch.linalg.solve(square, first.T @ signs_N[:half])
    return ((f_NF[half:] @ weights_F > 0) != (y_N[half:] == 1)).double().mean().item()


def notes(recipe: Recipe, folder: Path) -> list[str]:
    """What accumulation does to the loss."""
    parts = f"{recipe.accumulate} parts, and each is contrasted with itself alone: fewer negatives, another loss"
    return [f"accumulate={recipe.accumulate} cuts a batch into {parts}"] if recipe.accumulate > 1 else []
