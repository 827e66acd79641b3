"""The weather forecasting task: a vision transformer, pairs of states, the mean squared error, scores of a forecast.

In: a recipe and a data set's folder. Out: a ``Task`` for the training loop, which is the only place where training
meets the weather. A forecast is judged per channel, weighted by area, against the simplest one, that nothing changes
(persistence), and by how it departs from the average state (climatology).

Legend: N samples in the split, B in a batch, C channels, H rows (latitude) × W columns (longitude).
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.config import Preset, preset
from dltutorial.data import loaders, sampling, store, weather
from dltutorial.data.loaders import LOADERS, Pairs, endless_batches
from dltutorial.engine.distributed import data_rank, data_world_size, sum_over_ranks, tells_of_data
from dltutorial.engine.recipe import ModelRecipe, RankRecipe, Recipe
from dltutorial.engine.task import Task, seeded
from dltutorial.errors import DataError, RecipeError
from dltutorial.models.vit import ViT

SCORE = "valid/rmse_ratio_to_persistence"
ALONE = RankRecipe()
_WHOLE_BYTES = 2**28  # so large may data be that are read whole before a run


def make_recipe(base: Preset, knobs: Mapping, folder: Path | None) -> Recipe:
    """The recipe of a preset with these knobs; what none of them sets of a sample's shape is the data's."""
    C, H, W = store.open_split(folder, "train").shape if folder else (base.n_channels, base.n_lat, base.n_lon)
    recipe = Recipe.of(base, **{"n_channels": C, "n_lat": H, "n_lon": W, **knobs})
    why = "is a science case's; the weather has one network, and all years"
    for name in ("network", "samples"):
        recipe.require(not getattr(recipe, name), name, why)
    return recipe


def ensure(recipe: Recipe, progress: bool = True) -> Path:
    """The folder of the simulated weather of the recipe's preset; see ``data.weather``."""
    return weather.ensure(preset(recipe.preset), progress=progress)


def notes(recipe: Recipe, folder: Path) -> list[str]:
    """What whoever trains should know of these data."""
    split, said = store.open_split(folder, "train"), []
    _, n_lat, n_lon = split.shape
    if (recipe.n_lat, recipe.n_lon) != (n_lat, n_lon):
        seam = "; --no-roll shifts none across the new seam" if recipe.roll and recipe.n_lon < n_lon else ""
        where = f"the first {recipe.n_lat} of {n_lat} rows and {recipe.n_lon} of {n_lon} columns"
        said.append(f"samples are cropped: {where}{seam}")
    if split.time_means_1CHW is None:
        how = f"dltutorial data statistics --source {folder}"
        said.append(f"the data have no time_means.npy, so no anomaly correlation is scored; to make it: {how}")
    return said


def make_task(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe on a data set, whose samples are cropped where the recipe asks for fewer rows or columns.

    Raises:
        CourseError: data that do not fit the recipe, or too few; or there is no such device.
    """
    crop = recipe.n_lat, recipe.n_lon
    train = store.open_split(folder, "train", crop)
    wanted, C, (H, W) = (recipe.n_channels, *crop), train.shape[0], train.grid
    if train.shape != wanted:
        told = f"recipe expects samples of (channels, lat, lon) {wanted}, the data have {(C, H, W)}"
        todo = f"set n_channels to {C}, n_lat to at most {H} and n_lon to at most {W}, or choose other data"
        raise RecipeError(f"{told}; {todo}")
    valid = Pairs(store.open_split(folder, "valid", crop))
    if len(valid) == 0:
        raise DataError(f"{Path(folder) / 'valid'} has no two snapshots in a row to forecast; put longer years there")
    model = build_model(recipe)
    device = next(model.parameters()).device
    sampling.endless(len(Pairs(train)), recipe.global_batch_size)  # refuses a batch that is too large now, not later
    return Task(
        model, lambda skip: batches(train, recipe, device, skip, data_rank(recipe), data_world_size(recipe)),
        squared_error, lambda model: evaluate(model, valid, mesh=recipe),
        data_id=fingerprint(train, valid.split), check_data=lambda: store.validate(folder, progress=True),
    )  # fmt: skip


def squared_error(model: nn.Module, now: Tensor, then: Tensor) -> Tensor:
    """The mean squared error of a forecast."""
    return F.mse_loss(model(now), then)


def build_model(recipe: Recipe) -> ViT:
    """The recipe's model with its seeded initial weights, on its device. CourseError: there is no such one."""
    return seeded(lambda: make_vit(recipe), recipe)


def make_vit(sizes: ModelRecipe) -> ViT:
    """A vision transformer of these sizes, with random weights."""
    shape = sizes.n_channels, sizes.n_lat, sizes.n_lon, sizes.patch, sizes.dim, sizes.depth, sizes.heads
    return ViT(
        *shape, predict_change=sizes.predict_change, fused_attention=sizes.fused_attention, head_bias=sizes.head_bias,
        norm_eps=sizes.norm_eps, checkpoint_blocks=sizes.checkpoint_activations,
    )  # fmt: skip


def batches(
    split: store.Split, recipe: Recipe, device: str | torch.device = "cpu",
    skip: int = 0, rank: int = 0, world_size: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:  # fmt: skip
    """Batches (x_BCHW, y_BCHW) for ever, from the recipe's loader; for one seed all loaders give the same batches.

    The first ``skip`` are left out: a resumed run has seen them. One rank of several gets its part of each.

    Raises:
        DataError: fewer pairs than one batch takes.
    """
    size, seed, roll = recipe.global_batch_size, recipe.seed, recipe.roll
    part = {"rank": rank, "world_size": world_size, "skip": skip}
    if recipe.loader == "plain":
        return endless_batches(Pairs(split), size, seed=seed, roll=roll, workers=recipe.workers, **part)
    config = dataclasses.replace(LOADERS[recipe.loader], workers=recipe.workers)
    return loaders.make_loader(split, size, config, seed=seed, roll=roll, device=device, **part)


def fingerprint(*splits: store.Split) -> str:
    """What the years hold, more than ``_WHOLE_BYTES`` by a few samples, and what normalises, weighs and scores them."""
    digest = hashlib.blake2b(digest_size=8)
    for split in splits:
        digest.update(repr((split.snapshots, split.geometry, split.snapshot_s)).encode())
        digest.update(split.means_1C11.tobytes() + split.stds_1C11.tobytes())
        digest.update(b"" if split.time_means_1CHW is None else split.time_means_1CHW.tobytes())
        snapshots = dict(zip(split.files, split.snapshots, strict=True))
        for file, index in store.looked_at(snapshots, _WHOLE_BYTES // split.sample_bytes):
            digest.update(store.read_sample(file, index).tobytes())
    return digest.hexdigest()


def row_weights(n_lat: int, geometry: str, of_rows: int | None = None) -> Tensor:
    """The share of the area that each row stands for: shape (H, 1), mean 1; of the first rows of a grid of more.

    On a ``sphere`` rows shrink towards the poles with the cosine of latitude, which runs from 90° to −90° with both
    poles on the grid (ERA5). On the flat ``beta-plane`` all rows count the same. ValueError: another geometry.
    """
    if geometry == "beta-plane":
        return torch.ones(n_lat, 1)
    if geometry != "sphere":
        raise ValueError(f"geometry {geometry!r} is neither sphere nor beta-plane")
    weights_H1 = torch.cos(torch.deg2rad(torch.linspace(90, -90, of_rows or n_lat)[:n_lat])).clamp_min(0)[:, None]
    return weights_H1 / weights_H1.mean()


def rmse(forecast_BCHW: Tensor, truth_BCHW: Tensor, weights_H1: Tensor) -> Tensor:
    """Area-weighted root-mean-square error of each sample and channel, shape (B, C).

    Rasp et al. 2020 (WeatherBench, arXiv:2002.00469), equation 1: the root is taken before averaging over samples.
    """
    return (weights_H1 * (forecast_BCHW - truth_BCHW) ** 2).mean((-2, -1)).sqrt()


def anomaly_correlation(forecast_BCHW: Tensor, truth_BCHW: Tensor, climate_1CHW: Tensor, weights_H1: Tensor) -> Tensor:
    """Area-weighted correlation of the departures from climatology, shape (B, C), between −1 and 1.

    Rasp et al. 2020, equation 2, without removing the mean of the anomalies. A forecast that never departs from
    climatology has no defined correlation; it scores 0.
    """
    f, t = forecast_BCHW - climate_1CHW, truth_BCHW - climate_1CHW
    product = (weights_H1 * f * t).mean((-2, -1))
    spread = ((weights_H1 * f**2).mean((-2, -1)) * (weights_H1 * t**2).mean((-2, -1))).sqrt()
    return torch.where(spread == 0, 0.0, product / spread.clamp_min(torch.finfo(spread.dtype).tiny))


@torch.no_grad()  # of tensors made in inference mode ``fully_shard`` could not train later
def evaluate(model: nn.Module, pairs: Pairs, batch_size: int = 16, mesh: RankRecipe = ALONE) -> dict[str, float]:
    """Forecast every pair of a split once; scores by name. The model is left in the mode it was found in.

    ``valid/rmse`` is in each channel's standard deviations over the training years, a mean over samples and channels;
    ``valid/rmse_ratio_to_persistence`` the mean over channels of that error relative to persistence, below 1 where the
    model is better; ``valid/anomaly_correlation`` needs time means among the data.

    Several ranks share the batches; each gets the scores of all, the very ones that one rank alone would find. All
    make as many forecasts, for each may be a message: who has no batch left repeats the last one, and keeps no score.
    """
    split, device = pairs.split, next(model.parameters()).device
    weights_H1 = row_weights(split.shape[-2], split.geometry, split.grid[0]).to(device)
    climate = np.full((1, *split.shape), np.nan, np.float32) if split.time_means_1CHW is None else split.time_means_1CHW
    climate_1CHW = torch.from_numpy((climate - split.means_1C11) / split.stds_1C11).to(device)
    was_training = model.training
    model.eval()
    rows_3NC = torch.zeros(3, len(pairs), split.shape[0], device=device)
    batches, n = torch.arange(len(pairs)).split(batch_size), data_world_size(mesh)
    turns = range(data_rank(mesh), -(-len(batches) // n) * n, n)
    mine = [batches[min(turn, len(batches) - 1)] for turn in turns]
    loader = torch.utils.data.DataLoader(pairs, batch_sampler=[indices.tolist() for indices in mine])
    for turn, indices, (x_BCHW, y_BCHW) in zip(turns, mine, loader, strict=True):
        x_BCHW, y_BCHW = x_BCHW.to(device), y_BCHW.to(device)
        forecast_BCHW = model(x_BCHW)
        if turn >= len(batches) or not tells_of_data(mesh):
            continue
        errors = rmse(forecast_BCHW, y_BCHW, weights_H1), rmse(x_BCHW, y_BCHW, weights_H1)
        correlation_BC = anomaly_correlation(forecast_BCHW, y_BCHW, climate_1CHW, weights_H1)
        rows_3NC[:, indices.to(device)] = torch.stack([*errors, correlation_BC])
    model.train(was_training)
    model_C, now_C, correlation_C = sum_over_ranks(rows_3NC).mean(1).cpu()
    found = {"valid/rmse": model_C.mean().item(), SCORE: (model_C / now_C).mean().item()}
    if split.time_means_1CHW is not None:
        found["valid/anomaly_correlation"] = correlation_C.mean().item()
    return found
