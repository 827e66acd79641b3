"""Extreme weather as a segmentation: which grid points belong to a cyclone, which to a front.

The fields are the course's simulated weather (``data.weather``) with noise on them; the labels come from the fields
without it, by rules: cyclones where rotation beats strain (Okubo and Weiss), fronts where the tracer jumps. Both are
rare, as DeepCAM's tropical cyclones (1) and atmospheric rivers (2) are (Kurth et al. 2018, arXiv:1810.01993), and stand
in their place in its layout (mlcommons/hpc):

    <folder>/train/*.h5, validation/*.h5, test/*.h5     one file a sample: ``climate/data`` (H, W, C) float32,
                                                        ``climate/labels_0`` (H, W): 0 background, 1, 2 events
    <folder>/stats.h5                                   ``climate/minval``, ``climate/maxval`` (C) of the training data

Legend: B samples, C channels, H rows × W columns, K classes; counts_3K: hits, false alarms, misses of each class.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.config import Preset, preset
from dltutorial.data import store, weather
from dltutorial.engine.distributed import sum_over_ranks
from dltutorial.engine.recipe import RankRecipe, Recipe
from dltutorial.engine.task import Task, seeded
from dltutorial.errors import DataError, RecipeError
from dltutorial.science import cases
from dltutorial.science.resnet import ResNet, convolution, norm

CLASSES = "background", "cyclone", "front"
NETWORKS = "atrous", "tiramisu"
SPLITS = {"train": "train", "valid": "validation", "test": "test"}
SCORE = "valid/loss"
SAMPLE, STATS = ("climate/data", "climate/labels_0"), ("climate/minval", "climate/maxval")
# Of DeepCAM's pixels: background, tropical cyclones, atmospheric rivers (deepCam/train.py).
DEEPCAM_SHARES = 0.986267818390377, 0.0004578708870701058, 0.01327431072255291
_SMOKE: dict[str, Any] = {"steps": 100, "global_batch_size": 4, "learning_rate": 2e-2, "weight_decay": 0.0}
_GPU = {**_SMOKE, "steps": 2000, "global_batch_size": 16, "learning_rate": 1e-3, "precision": "bf16"}
_DEFAULTS = {"smoke": _SMOKE, "laptop": {**_SMOKE, "steps": 1500}, "gpu": _GPU, "cluster": _GPU}
_FAR, _OTHER = 100, "as if it was of other data; make stats.h5 of these, or leave out what stands for no value"
NOISE, SPIN, SLOPE = 0.1, 3.0, 2.0  # of the fields, of the rules, in standard deviations; the data's version says which


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs."""
    return cases.recipe_of(base, _DEFAULTS, knobs, NETWORKS)


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of labelled weather of the recipe's preset."""
    base = preset(recipe.preset)
    made = weather.Plan.of(base)
    n_bytes = sum(made.years) * made.snapshots * (4 * int(np.prod(made.shape)) + 8 * base.n_lat * base.n_lon)
    plan = cases.Simulated(sum(made.years) * made.snapshots, kind=made.digest)
    return cases.kept("climate", plan, partial(_label, base, progress), n_bytes, progress)


def _label(base: Preset, progress: bool, folder: Path) -> None:
    """Write every snapshot as a file of its own, with labels and noise; then the statistics."""
    source = weather.ensure(base, progress=progress)
    extremes_C, limits = [], None
    for number, (name, there) in enumerate(SPLITS.items()):
        split = store.open_split(source, name)
        (folder / there).mkdir(parents=True, exist_ok=True)
        for n_year in range(len(split.files)):
            with split.open_year(n_year) as year:
                x_TCHW = year.snapshots(0, len(year))
            spin_THW, slope_THW = event_fields(x_TCHW)
            if limits is None:  # of the first training year
                limits = -SPIN * spin_THW.std(), slope_THW.mean() + SLOPE * slope_THW.std()
            labels_THW = np.where(spin_THW < limits[0], 1, np.where(slope_THW > limits[1], 2, 0))
            draw = np.random.default_rng((number, n_year, 21))
            x_TCHW = x_TCHW + NOISE * split.stds_1C11 * draw.standard_normal(x_TCHW.shape, np.float32)
            if name == "train":
                extremes_C += [x_TCHW.min((0, 2, 3)), x_TCHW.max((0, 2, 3))]
            for n, (x_CHW, label_HW) in enumerate(zip(x_TCHW, labels_THW, strict=True)):
                file = folder / there / f"data-{n_year + 1:04d}-{n:03d}.h5"
                x_HWC = np.ascontiguousarray(x_CHW.transpose(1, 2, 0), np.float32)
                cases.write(file, dict(zip(SAMPLE, (x_HWC, label_HW.astype(np.uint8)), strict=True)))
    cases.write(folder / "stats.h5", {STATS[0]: np.min(extremes_C, 0), STATS[1]: np.max(extremes_C, 0)})


def event_fields(x_TCHW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the labels are rules of, (T, H, W) each, from the first layer's fields without noise.

    Strain squared less vorticity squared where the vorticity is that of cyclones, else 0 (Okubo 1970, Weiss 1991); and
    the tracer's slope. Differences over four grid lengths; the grid closes on itself in both directions.
    """
    x_3THW = x_TCHW[:, [0, 1, 4]].swapaxes(0, 1).astype(np.float64)
    (u_y, v_y, t_y), (u_x, v_x, t_x) = ((np.roll(x_3THW, -2, axis) - np.roll(x_3THW, 2, axis)) / 4 for axis in (2, 3))
    vorticity = v_x - u_y
    return np.where(vorticity > 0, (u_x - v_y) ** 2 + (v_x + u_y) ** 2 - vorticity**2, 0.0), np.hypot(t_x, t_y)


class Samples:
    """One split of a folder in DeepCAM's layout. DataError: no files, or one that is not of the layout."""

    def __init__(self, folder: Path, split: str) -> None:
        self.place = Path(folder) / SPLITS[split]
        self.files, stats = cases.files(self.place, "climate"), Path(folder) / "stats.h5"
        self.low_C, high_C = cases.arrays(stats, **dict.fromkeys(STATS, "C"))
        with np.errstate(over="ignore", divide="ignore"):
            self.scale_C = 1 / (high_C - self.low_C)
        if not ((self.scale_C > 0) & np.isfinite(self.scale_C)).all():
            raise DataError(f"{stats}: a channel's maxval is not above its minval, or too far; leave the channel out")
        self.size = "HW"
        self.shape = self.read(0)[0].shape
        self.size = "{1} {2}".format(*self.shape)  # of all others too

    def __len__(self) -> int:
        """Samples."""
        return len(self.files)

    def read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Fields (C, H, W) between −1/2 and 1/2 or about it, labels (H, W)."""
        file = self.files[index]
        shapes = f"{self.size} {len(self.low_C)}", self.size
        x_HWC, label_HW = cases.arrays(file, **dict(zip(SAMPLE, shapes, strict=True)))
        if not np.ptp(x_HWC) > 0:
            raise DataError(f"{file} holds one value only, as if never written; copy it again from its source")
        x_HWC = (x_HWC - self.low_C) * self.scale_C - 0.5
        if not -_FAR < x_HWC.min() <= x_HWC.max() < _FAR:
            raise DataError(f"{file} holds values that are {_FAR} ranges beyond stats.h5, {_OTHER}")
        return np.ascontiguousarray(x_HWC.transpose(2, 0, 1)), cases.classes(file, label_HW, len(CLASSES))

    def batch(self, indices: list[int], seeds: Tensor | None = None, roll: bool = False) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) and (B, H, W); ``roll`` shifts each along longitude, by its seed."""
        x_BCHW, label_BHW = map(np.stack, zip(*map(self.read, indices), strict=True))
        if roll and seeds is not None:
            for n, seed in enumerate(seeds.tolist()):
                x_BCHW[n], label_BHW[n] = (np.roll(part[n], seed, -1) for part in (x_BCHW, label_BHW))
        return torch.from_numpy(x_BCHW), torch.from_numpy(label_BHW)

    def shares(self) -> np.ndarray:
        """The share of each class among all pixels. DataError: one never occurs, so its share gives no weight."""
        counts = np.zeros(len(CLASSES), np.int64)
        low_C, high_C = np.full((2, len(self.low_C)), [[np.inf], [-np.inf]])
        for n in range(len(self)):
            x_CHW, label_HW = self.read(n)
            low_C, high_C = np.minimum(low_C, x_CHW.min((1, 2))), np.maximum(high_C, x_CHW.max((1, 2)))
            counts += np.bincount(label_HW.ravel(), minlength=len(CLASSES))
        if (narrow_C := high_C - low_C < 1 / _FAR).any():
            what = f"the values of channel {narrow_C.argmax()} are less than a {_FAR}th of what stats.h5 says apart"
            raise DataError(f"{self.place}: {what}, {_OTHER}")
        if not counts.all():
            names = ", ".join(name for name, count in zip(CLASSES, counts, strict=True) if not count)
            raise DataError(f"{self.place}: no pixel is of class {names}; it can have no weight: add samples")
        return counts / counts.sum()


class AtrousNet(nn.Module):
    """A residual encoder whose last stage has gaps, atrous convolutions side by side, and a decoder: as DeepLabv3+.

    Chen et al. 2018 (arXiv:1802.02611), figure 2; but drawn on the full grid, as DeepCAM does: what is drawn is thin.
    """

    def __init__(self, channels: int, classes: int, depths: tuple[int, ...], width: int, quarter: bool) -> None:
        super().__init__()
        self.encoder = ResNet(channels, 0, depths, width, quarter, atrous=1)
        n_deep, inner, rates = self.encoder.n_out, 4 * width, (6, 12, 18) if quarter else (2, 4, 6)
        kinds = [(1, 1), *((3, rate) for rate in rates)]
        self.side_by_side = nn.ModuleList(convolution(n_deep, inner, kernel, 1, rate) for kernel, rate in kinds)
        self.of_all = nn.Conv2d(n_deep, inner, 1)
        self.merge = convolution(5 * inner, inner, 1)
        self.fine = convolution(4 * width, 3 * width // 4, 1)
        self.draw = nn.Sequential(convolution(inner + 3 * width // 4, inner), convolution(inner, 2 * width))
        self.sharp = convolution(channels, width)
        self.head = nn.Sequential(convolution(3 * width, 2 * width), nn.Conv2d(2 * width, classes, 1))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits (B, K, H, W)."""
        fine, *_, deep = self.encoder.stages(x_BCHW)
        whole = F.relu(self.of_all(deep.mean((2, 3), keepdim=True))).expand(-1, -1, *deep.shape[2:])
        deep = self.merge(torch.cat([*(layer(deep) for layer in self.side_by_side), whole], 1))
        deep = F.interpolate(deep, size=fine.shape[2:], mode="bilinear")
        drawn = self.draw(torch.cat([deep, self.fine(fine)], 1))
        drawn = F.interpolate(drawn, size=x_BCHW.shape[2:], mode="bilinear")
        return self.head(torch.cat([drawn, self.sharp(x_BCHW)], 1))


class _Dense(nn.Module):
    """Each layer sees what came in and what all before it have made; given back is what is new."""

    def __init__(self, n_in: int, depth: int, growth: int, kernel: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for n in range(n_in, n_in + depth * growth, growth):
            layer = nn.Conv2d(n, growth, kernel, padding=kernel // 2, bias=False)
            self.layers.append(nn.Sequential(norm(n), nn.ReLU(), layer))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """(B, depth × growth, H, W)."""
        seen = [x_BCHW]
        for layer in self.layers:
            seen.append(layer(torch.cat(seen, 1)))
        return torch.cat(seen[1:], 1)


class Tiramisu(nn.Module):
    """Dense blocks down and up again, with shortcuts across: as Jégou et al. 2016 (arXiv:1611.09326)."""

    def __init__(self, channels: int, classes: int, depths: tuple[int, ...], growth: int, kernel: int) -> None:
        super().__init__()
        n, across = 2 * growth, []
        self.stem = nn.Conv2d(channels, n, kernel, padding=kernel // 2, bias=False)
        self.down, self.shrink, self.grow, self.up = (nn.ModuleList() for _ in range(4))
        for depth in depths[:-1]:
            self.down.append(_Dense(n, depth, growth, kernel))
            n += depth * growth
            across.append(n)
            self.shrink.append(nn.Sequential(norm(n), nn.ReLU(), nn.Conv2d(n, n, 1, bias=False), nn.MaxPool2d(2)))
        self.bottom, n = _Dense(n, depths[-1], growth, kernel), depths[-1] * growth
        for depth, beside in zip(depths[-2::-1], across[::-1], strict=True):
            self.grow.append(nn.ConvTranspose2d(n, n, 2, 2))
            self.up.append(_Dense(n + beside, depth, growth, kernel))
            n = depth * growth
        self.head = nn.Conv2d(n, classes, 1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits (B, K, H, W)."""
        h, across = self.stem(x_BCHW), []
        for dense, shrink in zip(self.down, self.shrink, strict=True):
            across.append(torch.cat([h, dense(h)], 1))
            h = shrink(across[-1])
        h = self.bottom(h)
        for grow, dense in zip(self.grow, self.up, strict=True):
            h = dense(torch.cat([grow(h), across.pop()], 1))
        return self.head(h)


def make_network(network: str, channels: int, published: bool) -> nn.Module:
    """A network by name, of published depth or one for two cores; random weights from torch's generator."""
    if network == "tiramisu":
        sizes: tuple = ((2, 2, 2, 4, 5), 32, 5) if published else ((1, 2, 2), 4, 3)  # of Kurth et al.'s runs on Summit
        return Tiramisu(channels, len(CLASSES), *sizes)
    depths, width = ((3, 4, 6, 3), 64) if published else ((1, 1, 1), 4)
    return AtrousNet(channels, len(CLASSES), depths, width, quarter=published)


def class_weights(shares: np.ndarray | tuple[float, ...], power: float) -> Tensor:
    """Of the classes' shares: (K,) float32. With −1 all classes weigh the same in all, with 0 all pixels."""
    return torch.tensor(shares, dtype=torch.float64).pow(power).float()


def weighted_error(weight_K: Tensor) -> Callable[..., Tensor]:
    """The loss: each pixel's cross entropy times its class's weight, and the mean over pixels.

    Not divided by the sum of the weights, as ``F.cross_entropy`` does: that sum differs from rank to rank and from part
    to part of a batch, so the mean of their losses would not be the loss of all.
    """

    def loss(model: nn.Module, x_BCHW: Tensor, label_BHW: Tensor) -> Tensor:
        each_BHW = F.cross_entropy(model(x_BCHW).float(), label_BHW, reduction="none")
        return (weight_K.to(label_BHW.device)[label_BHW] * each_BHW).mean()

    return loss


def make_task(recipe: Recipe, folder: Path, power: float = -0.5) -> Task:
    """The task on a folder; weights are its shares to this power. CourseError: data that do not fit, or too few."""
    train, valid = Samples(folder, "train"), Samples(folder, "valid")
    store.require_alike({split.files[0]: (1, *split.shape) for split in (train, valid)})
    published, (_, H, W) = recipe.preset in ("gpu", "cluster"), train.shape
    if recipe.network == "tiramisu" and (H % (least := 16 if published else 4) or W % least):
        raise RecipeError(f"network=tiramisu: {H} × {W} points do not divide by {least}; take atrous, or crop the data")
    weight_K = class_weights(train.shares(), power)
    return Task(
        seeded(lambda: make_network(recipe.network, train.shape[0], published), recipe),
        cases.feed(len(train), partial(train.batch, roll=recipe.roll), recipe),
        weighted_error(weight_K),
        lambda model: scores(model, valid, weight_K, recipe),
        data_id=f"{len(train)} {cases.digest([*train.files, Path(folder) / 'stats.h5', *valid.files])}",
        check_data=lambda: [split.read(n) for split in (train, valid) for n in range(len(split))],
    )


def notes(recipe: Recipe, folder: Path) -> list[str]:
    """The classes' shares, which say what doing nothing scores."""
    shares = Samples(folder, "train").shares()
    told = ", ".join(f"{name} {share:.2%}" for name, share in zip(CLASSES, shares, strict=True))
    return [f"of the pixels are {told}: who always says background is right at {shares[0]:.2%}"]


def count(said: Tensor, label: Tensor, classes: int = len(CLASSES)) -> Tensor:
    """Hits, false alarms and misses of each class: (3, K), float64, so that sums over ranks are exact."""
    pairs_KK = torch.bincount((label * classes + said).flatten(), minlength=classes**2).view(classes, classes).double()
    hits_K = pairs_KK.diagonal()
    return torch.stack([hits_K, pairs_KK.sum(0) - hits_K, pairs_KK.sum(1) - hits_K])


def iou(counts_3K: Tensor) -> Tensor:
    """Intersection over union of each class, (K,): 1 where neither side has the class."""
    union_K = counts_3K.sum(0)
    return torch.where(union_K > 0, counts_3K[0] / union_K.clamp_min(1), 1.0)


@torch.no_grad()
def scores(model: nn.Module, samples: Samples, weight_K: Tensor, mesh: RankRecipe) -> dict[str, float]:
    """The weighted loss, accuracy and IoU by class of a whole split; several ranks share the batches and add up."""
    device = next(model.parameters()).device
    total_3K, error = torch.zeros(3, len(CLASSES), dtype=torch.float64, device=device), weighted_error(weight_K)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for indices, counts in cases.shared(len(samples), 8, mesh):
        x_BCHW, label_BHW = (part.to(device) for part in samples.batch(indices))
        logits_BKHW = model(x_BCHW)
        if counts:
            total += len(indices) * error(nn.Identity(), logits_BKHW, label_BHW).double()
            total_3K += count(logits_BKHW.argmax(1), label_BHW)
    total_3K, loss = sum_over_ranks(total_3K).cpu(), sum_over_ranks(total).item() / len(samples)
    by_class = {f"valid/iou {name}": value for name, value in zip(CLASSES, iou(total_3K).tolist(), strict=True)}
    return {"valid/loss": loss, "valid/accuracy": (total_3K[0].sum() / total_3K[[0, 2]].sum()).item(), **by_class}
