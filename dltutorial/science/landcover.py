"""Land cover: which of 19 classes a multispectral tile holds, several at once, some of them rare.

Simulated: smooth random fields compete for each pixel; a class's handicap makes it rare. Each class has a spectrum and
a roughness, each tile a brightness and noise; with 5% of its pixels a class is one of its labels. Bands, unit
(reflectance × 10,000) and classes are those of BigEarthNet v2 with Sentinel-2 (Clasen et al. 2024, arXiv:2407.03653),
whose 120 × 120 tiles come as GeoTIFFs, which this course cannot read. So its tiles go into one file a split:

    <folder>/train.h5, validation.h5, test.h5      ``images`` (N, 12, H, W) uint16, ``labels`` (N, 19) uint8, 0 or 1

Legend: N samples, B in a batch, C bands, H × W pixels, K classes; counts_3K: hits, false alarms, misses of each class.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.config import Preset
from dltutorial.data import formats, store, writing
from dltutorial.engine.distributed import sum_over_ranks
from dltutorial.engine.recipe import RankRecipe, Recipe
from dltutorial.engine.task import Task, seeded
from dltutorial.errors import DataError
from dltutorial.science import cases
from dltutorial.science.resnet import ResNet

CLASSES = (
    "urban fabric", "industrial or commercial", "arable land", "permanent crops", "pastures",
    "complex cultivation", "agriculture with nature", "agro-forestry", "broad-leaved forest", "coniferous forest",
    "mixed forest", "natural grassland", "moors and heath", "transitional woodland", "beaches, dunes, sands",
    "inland wetlands", "coastal wetlands", "inland waters", "marine waters",
)  # fmt: skip
BANDS = "B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"
NETWORKS = "small", "resnet50"
SPLITS = {"train": "train", "valid": "validation", "test": "test"}
SCORE = "valid/loss"
ALONE = RankRecipe()
_SMOKE: dict[str, Any] = {"steps": 90, "global_batch_size": 32, "learning_rate": 1e-2, "weight_decay": 0.0}
_GPU: dict[str, Any] = {**_SMOKE, "network": "resnet50", "steps": 5000, "global_batch_size": 512, "learning_rate": 1e-3}
_DEFAULTS = {"smoke": _SMOKE, "laptop": {**_SMOKE, "steps": 1000}, "gpu": _GPU, "cluster": _GPU}
_SIZES = {"smoke": (3000, 24), "laptop": (12_000, 24), "gpu": (60_000, 120), "cluster": (60_000, 120)}


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs."""
    return cases.recipe_of(base, _DEFAULTS, knobs, NETWORKS)


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of simulated tiles for a recipe."""
    n, size = _SIZES[recipe.preset]
    plan = cases.Simulated(recipe.samples or n, max(1, (recipe.samples or n) // 4), size)
    lengths, n_bytes = (plan.samples, plan.n_valid, plan.n_valid), 2 * len(BANDS) * size**2 + len(CLASSES)

    def make(folder: Path) -> None:
        for number, (name, n) in enumerate(zip(SPLITS.values(), lengths, strict=True)):
            shape = n, len(BANDS), size, size
            with writing.hdf5(folder / f"{name}.h5", n * n_bytes) as h5:
                images = h5.create_dataset("images", shape, np.uint16, chunks=(1, *shape[1:]))
                labels = h5.create_dataset("labels", (n, len(CLASSES)), np.uint8)
                for first in range(0, n, 250):
                    part, seed = slice(first, min(n, first + 250)), (number << 32) + first
                    images[part], labels[part] = simulate(part.stop - first, size, seed=seed)

    return cases.kept("landcover", plan, make, sum(lengths) * n_bytes, progress)


def simulate(n: int, size: int, noise: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tiles (N, 12, size, size) and labels (N, 19); the classes look alike for every seed."""
    K, C = len(CLASSES), len(BANDS)
    look = torch.Generator().manual_seed(21)
    spectra_KC = torch.randn(K, C, generator=look).cumsum(1) * 1.5 / C**0.5  # neighbours resemble each other
    rough_K = 0.1 + 0.5 * torch.rand(K, generator=look)
    handicap_K = torch.linspace(0, 2.6, K)[torch.randperm(K, generator=look)]
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.randn(n, K, 4, 4, generator=draw)
    terrain_NKHW = F.interpolate(coarse, size=(size, size), mode="bicubic") - handicap_K[:, None, None]
    terrain_NKHW += 1.2 * torch.randn(n, K, 1, 1, generator=draw)  # a region has some classes, not all
    cover_NHW = terrain_NKHW.argmax(1)
    share_NK = F.one_hot(cover_NHW, K).float().mean((1, 2))
    texture_NHW = rough_K[cover_NHW] * torch.randn(n, size, size, generator=draw)
    light_N11 = 1 + 0.2 * torch.randn(n, 1, 1, generator=draw)
    x_NHWC = spectra_KC[cover_NHW] * light_N11[..., None] + texture_NHW[..., None]
    x_NCHW = x_NHWC.permute(0, 3, 1, 2) + noise * torch.randn(n, C, size, size, generator=draw)
    reflectance = (2000 + 500 * x_NCHW).clamp(1, 10_000)
    return reflectance.round().numpy().astype(np.uint16), (share_NK >= 0.05).numpy().astype(np.uint8)


class Tiles:
    """One split of a folder. DataError: it is missing, of another layout, or its labels are not 0 and 1."""

    def __init__(self, folder: Path, split: str) -> None:
        self.file = Path(folder) / f"{SPLITS[split]}.h5"
        with cases.opened(self.file, images="NCHW", labels=f"N{len(CLASSES)}") as (images, labels):
            self.shape, labels_NK = images.shape, labels[...]
            if images.dtype.itemsize == 1:  # a picture for the eye
                raise DataError(f"{self.file}: images is {images.dtype}, no reflectance × 10,000; write that unit")
            self.no_value = formats.own_no_value(self.file, images.attrs, images.fillvalue or 65535)  # uint16's last
        self.labels_NK = torch.from_numpy(cases.classes(self.file, labels_NK, 2)).float()

    def __len__(self) -> int:
        """Tiles."""
        return self.shape[0]

    def batch(self, indices: list[int], seeds: Tensor | None = None, turn: bool = False) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) about 0, and labels (B, K); ``turn`` mirrors and turns each, by its seed."""
        with formats.blaming(self.file), formats.open_hdf5(self.file) as h5, np.errstate(over="ignore"):
            images = h5["images"]  # one by one: h5py is slow with a list of places
            x_BCHW = torch.from_numpy(np.stack([images[index] for index in indices]).astype(np.float32))
        ends_2B = torch.stack([x_BCHW.amin((1, 2, 3)), x_BCHW.amax((1, 2, 3))])
        none_B = torch.from_numpy(store.no_value(ends_2B.numpy())).any(0) | (x_BCHW == self.no_value).flatten(1).any(1)
        if (bad_B := none_B | ~((ends_2B[1] - ends_2B[0] > 2) & ends_2B.isfinite().all(0))).any():  # tiles spread more
            has = f"tile {indices[bad_B.int().argmax()]} holds NaN, infinity, no value, one value, or another unit"
            raise DataError(f"{self.file}: {has} than reflectance × 10,000; leave it out, or write that unit")
        x_BCHW = (x_BCHW - 2000) / 500
        if turn and seeds is not None:
            step = 1 if self.shape[2] == self.shape[3] else 2  # a tile that is not square stays so
            turned = [torch.rot90(x, step * (s % 4), (1, 2)) for x, s in zip(x_BCHW, seeds.tolist(), strict=True)]
            x_BCHW = torch.stack([x.flip(2) if s & 4 else x for x, s in zip(turned, seeds.tolist(), strict=True)])
        return x_BCHW, self.labels_NK[indices]


def make_network(network: str, channels: int) -> nn.Module:
    """ResNet-50 for so many bands, or a small one; random weights from torch's generator."""
    small: dict[str, Any] = {"depths": (1, 1, 1), "width": 12, "quarter": False}
    return ResNet(channels, len(CLASSES), **({} if network == "resnet50" else small))


def make_task(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe on a folder. CourseError: data that do not fit the recipe, or too few."""
    train, valid = Tiles(folder, "train"), Tiles(folder, "valid")
    store.require_alike({train.file: train.shape, valid.file: valid.shape})
    if (never_K := train.labels_NK.sum(0) == 0).any():
        names = ", ".join(name for name, never in zip(CLASSES, never_K, strict=True) if never)
        raise DataError(f"{train.file}: no tile has {names}, so nothing can be learned of it; add samples")
    train.batch([0])  # what cannot be is refused now, not later
    return Task(
        seeded(lambda: make_network(recipe.network, train.shape[1]), recipe),
        cases.feed(len(train), partial(train.batch, turn=recipe.roll), recipe),
        lambda model, x_BCHW, label_BK: F.binary_cross_entropy_with_logits(model(x_BCHW).float(), label_BK),
        lambda model: scores(*logits(model, valid, recipe)),
        data_id=cases.digest([train.file, valid.file]),
        check_data=lambda: [t.batch([n]) for t in (train, valid) for n in range(len(t))],
    )


def notes(recipe: Recipe, folder: Path) -> list[str]:
    """How unequal the classes are."""
    share_K = Tiles(folder, "train").labels_NK.mean(0)
    rare, common = int(share_K.argmin()), int(share_K.argmax())
    told = f"{CLASSES[common]} is in {share_K[common]:.0%} of the tiles, {CLASSES[rare]} in {share_K[rare]:.1%}"
    return [f"{told}; {share_K.sum():.1f} classes a tile"]


@torch.no_grad()
def logits(model: nn.Module, tiles: Tiles, mesh: RankRecipe = ALONE) -> tuple[Tensor, Tensor]:
    """Logits and labels (N, K) of a whole split, on the host; several ranks share the batches and all get all."""
    device = next(model.parameters()).device
    found_NK = torch.zeros(len(tiles), len(CLASSES), device=device)
    for indices, counts in cases.shared(len(tiles), 128, mesh):
        mine_BK = model(tiles.batch(indices)[0].to(device)).float()
        if counts:
            found_NK[indices] = mine_BK
    return sum_over_ranks(found_NK).cpu(), tiles.labels_NK


def count(said_NK: Tensor, label_NK: Tensor) -> Tensor:
    """Hits, false alarms and misses of each class: (3, K), float64, so that sums over ranks are exact."""
    said_NK, there_NK = said_NK.bool(), label_NK.bool()
    kinds = said_NK & there_NK, said_NK & ~there_NK, ~said_NK & there_NK
    return torch.stack([kind.sum(0).double() for kind in kinds])


def f1(counts_3K: Tensor) -> tuple[float, float]:
    """(micro, macro): of the sums over classes, and the mean of the classes' own; no hit and no error counts as 0."""
    hits, false, missed = counts_3K
    each_K = 2 * hits / (2 * hits + false + missed).clamp_min(1)
    micro = 2 * hits.sum() / (2 * hits + false + missed).sum().clamp_min(1)
    return micro.item(), each_K.mean().item()


def scores(logits_NK: Tensor, label_NK: Tensor) -> dict[str, float]:
    """Loss, and both F1 at a probability of one half."""
    micro, macro = f1(count(logits_NK > 0, label_NK))
    loss = F.binary_cross_entropy_with_logits(logits_NK, label_NK).item()
    return {"valid/loss": loss, "valid/f1 micro": micro, "valid/f1 macro": macro}
