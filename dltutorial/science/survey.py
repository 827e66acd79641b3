"""A sky survey without labels: SimCLR on images of galaxies.

In: a recipe and a folder with ``train.h5`` and ``valid.h5``, as the public files of Stein et al. 2021
(georgestein/ssl-legacysurvey) have them: ``images`` (N, C, H, W), float32. Added here are ``labels`` (N,), 1 for a
strong lens and 0 for none; only the valid part needs them.
Out: a ``Task``. Two views of each image are to be alike, and unlike the views of all others in the batch, on whichever
rank those lie: Chen et al. 2020 (arXiv:2002.05709), Hayat et al. 2020 (arXiv:2012.13083), whose network is a ResNet-50.

The loss of a batch is no sum over samples: with ``accumulate`` each part is contrasted with itself alone.

Legend: B images of this rank, N of all ranks or in a file, C channels, H × W pixels, F features, P of a projection.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.config import Preset
from dltutorial.data import lenses, store
from dltutorial.engine.distributed import rank, world_size
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task, seeded
from dltutorial.errors import DataError
from dltutorial.parallel.tensor import GatherTokens
from dltutorial.science import cases
from dltutorial.science.resnet import ResNet, convolution

SCORE = "valid/probe_error"
NETWORKS = ("small", "resnet50")
N_VALID = 2000
TEMPERATURE = 0.1
SIZES = {"smoke": 16, "laptop": 32, "gpu": 64, "cluster": 64}  # pixels along an edge
_SMOKE: dict[str, Any] = {"samples": 8000, "global_batch_size": 128, "steps": 240, "learning_rate": 3e-3}
_LAPTOP = {**_SMOKE, "samples": 24_000, "global_batch_size": 256, "steps": 2000}
_GPU: dict[str, Any] = {
    "network": "resnet50", "samples": 200_000, "global_batch_size": 1024, "steps": 10_000, "learning_rate": 1e-3,
}  # fmt: skip
_CLUSTER = {**_GPU, "samples": 500_000, "global_batch_size": 4096, "learning_rate": 2e-3}
_DEFAULTS = {"smoke": _SMOKE, "laptop": _LAPTOP, "gpu": _GPU, "cluster": _CLUSTER}


def make_network(network: str, channels: int, width: int = 12, n_projected: int = 32) -> nn.Sequential:
    """ResNet-50 or three convolutions; behind it a projection (B, P), which is thrown away after training."""
    if network == "resnet50":
        body: Any = ResNet(channels)
        body.head, n = nn.Identity(), body.n_out
    else:
        sizes, n = (channels, width, 2 * width, 4 * width), 4 * width
        layers = [convolution(*pair, stride=min(k, 2)) for k, pair in enumerate(itertools.pairwise(sizes), 1)]
        body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(body, nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n_projected)))


def views(x_BCHW: Tensor, seeds_B: Tensor) -> Tensor:
    """Each image turned, mirrored, shifted, zoomed, brighter or fainter, and noisier, as its own seed says.

    Whatever the batch and the rank, the same image with the same seed gives the same view.
    """
    H, W = x_BCHW.shape[2:]
    draws = [torch.Generator().manual_seed(seed) for seed in seeds_B.tolist()]
    drawn = torch.stack([torch.rand(6, generator=draw) for draw in draws], 1)
    noise_BCHW = torch.stack([torch.randn(x_BCHW.shape[1:], generator=draw) for draw in draws])
    turn_B, zoom_B, mirror_B, bright_B, *shift_B = drawn.to(x_BCHW)
    zoom_B, mirror_B = torch.exp(0.3 * (zoom_B - 0.5)), torch.where(mirror_B < 0.5, -1.0, 1.0)
    cos_B, sin_B = zoom_B * torch.cos(2 * torch.pi * turn_B), zoom_B * torch.sin(2 * torch.pi * turn_B)
    right_B, down_B = (0.2 * (x - 0.5) for x in shift_B)
    rows = mirror_B * cos_B, -sin_B * H / W, right_B, mirror_B * sin_B * W / H, cos_B, down_B
    places = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(x_BCHW.shape), align_corners=False)
    seen_BCHW = F.grid_sample(x_BCHW, places, padding_mode="reflection", align_corners=False)
    return seen_BCHW * torch.exp(0.6 * (bright_B - 0.5))[:, None, None, None] + 0.15 * noise_BCHW.to(x_BCHW)


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
    return cases.recipe_of(base, _DEFAULTS, knobs, NETWORKS)


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of simulated images: strong lenses, and galaxies that look like some; see ``data.lenses``."""
    plan = cases.Simulated(recipe.samples, N_VALID, SIZES[recipe.preset])

    def make(folder: Path) -> None:
        images_NHW, y_N = lenses.simulate(plan.samples + plan.n_valid, plan.size, plan.seed, "cpu", progress)
        for name, part in (("train", slice(plan.samples)), ("valid", slice(plan.samples, None))):
            cases.write(folder / f"{name}.h5", {"images": images_NHW[part, None], "labels": y_N[part]})

    return cases.kept("survey", plan, make, 4 * plan.size**2 * (plan.samples + plan.n_valid), progress)


def read(file: Path, want_labels: bool) -> tuple[Tensor, Tensor | None]:
    """Images (N, C, H, W) and, if wanted, labels (N,). DataError: as of ``cases``; half of the labels lack a class."""
    x_NCHW, *labels = cases.arrays(file, images="NCHW", **{"labels": "N"} if want_labels else {})
    if (flat_N := x_NCHW.max((1, 2, 3)) == x_NCHW.min((1, 2, 3))).any():
        raise DataError(f"{file}: image {flat_N.argmax()} holds one value only, as if never written; leave it out")
    if not want_labels:
        return torch.from_numpy(x_NCHW), None
    y_N = torch.from_numpy(cases.classes(file, labels[0], 2))
    if min(len(half.unique()) for half in y_N.tensor_split([len(y_N) // 2])) < 2:
        why = "a linear probe is fitted to the first half of the images, and tried on the second"
        raise DataError(f"{file}: {why}; labels 0 and 1 must occur in both: mix them, or add some")
    return torch.from_numpy(x_NCHW), y_N


def make_task(recipe: Recipe, folder: Path) -> Task:
    """SimCLR on views of the images, and a linear probe. CourseError: see ``read``; batches too large or too small."""
    recipe.require(recipe.global_batch_size >= 2 * recipe.accumulate, "global_batch_size", "leaves no negatives")
    files = [Path(folder) / f"{name}.h5" for name in ("train", "valid")]
    (x_NCHW, _), (valid_NCHW, valid_N) = read(files[0], False), read(files[1], True)
    store.require_alike({f: tuple(x.shape) for f, x in zip(files, (x_NCHW, valid_NCHW), strict=True)})
    x_NCHW = x_NCHW[: recipe.samples or None]
    centre, scale = x_NCHW.mean(), x_NCHW.std()
    x_NCHW, valid_NCHW = (x_NCHW - centre) / scale, (valid_NCHW - centre) / scale

    def two_views(indices: list[int], seeds_B: Tensor) -> tuple[Tensor, ...]:
        return views(x_NCHW[indices], seeds_B), views(x_NCHW[indices], seeds_B + 2**31)  # 32 bits of a seed count

    return Task(
        seeded(lambda: make_network(recipe.network, x_NCHW.shape[1]), recipe),
        cases.feed(len(x_NCHW), two_views, recipe),
        contrast,
        lambda model: {SCORE: probe_error(model, valid_NCHW, torch.as_tensor(valid_N))},
        data_id=cases.digest(files),
    )


def contrast(model: nn.Module, a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """The loss of SimCLR."""
    return info_nce(*model(torch.cat((a_BCHW, b_BCHW))).chunk(2))


@torch.no_grad()
def probe_error(model: nn.Module, x_NCHW: Tensor, y_N: Tensor, ridge: float = 1e-2) -> float:
    """Share of the second half that a linear probe names wrongly, fitted to the first half, on frozen features."""
    body: Any = getattr(model, "module", model)
    body, found = body[0], []
    hook = body.register_forward_hook(lambda layer, x, features: found.append(features.float().cpu()))
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
