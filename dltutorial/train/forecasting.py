"""The weather forecasting task: a vision transformer, pairs of states, the mean squared error, scores of a forecast.

In: a recipe and a data set's folder. Out: a ``Task`` for the training loop, which is the only place where training
meets the weather.

Legend: C channels, H × W grid points.
"""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial import machine
from dltutorial.config import ModelRecipe, Recipe
from dltutorial.data import loaders, sampling, store
from dltutorial.data.loaders import LOADERS, Pairs, endless_batches
from dltutorial.errors import CourseError, DataError, RecipeError
from dltutorial.models.vit import ViT
from dltutorial.train import distributed
from dltutorial.train.forecast_scores import evaluate
from dltutorial.train.run_folder import load_weights
from dltutorial.train.task import Task


def weather_task(recipe: Recipe, folder: Path) -> Task:
    """The task of a recipe on a data set.

    Raises:
        CourseError: data that do not fit the recipe, or too few; or there is no such device.
    """
    train = store.open_split(folder, "train")
    wanted = (recipe.n_channels, recipe.n_lat, recipe.n_lon)
    if tuple(train.shape) != wanted:
        raise RecipeError(
            f"recipe expects samples of (channels, lat, lon) {wanted}, the data have {tuple(train.shape)}; "
            "set n_channels, n_lat and n_lon, or choose other data"
        )
    valid = Pairs(store.open_split(folder, "valid"))
    if len(valid) == 0:
        raise DataError(f"{Path(folder) / 'valid'} has no two snapshots in a row to forecast; make or fetch it anew")
    model = build_model(recipe)
    device = next(model.parameters()).device
    sampling.endless(len(Pairs(train)), recipe.global_batch_size)  # refuses a batch that is too large now, not later
    return Task(
        model,
        lambda skip: batches(train, recipe, device, skip, distributed.rank(), distributed.world_size()),
        squared_error,
        lambda model: evaluate(model, valid).scalars(),
        data_id=fingerprint(train),
        check_data=lambda: store.validate(folder, progress=False),
    )


def squared_error(model: nn.Module, now: Tensor, then: Tensor) -> Tensor:
    """The mean squared error of a forecast."""
    return F.mse_loss(model(now), then)


def build_model(recipe: Recipe) -> ViT:
    """The recipe's model with its seeded initial weights, on the recipe's device.

    Raises:
        CourseError: the recipe asks for cuda and there is none.
    """
    device = machine.device() if recipe.device == "auto" else recipe.device
    if device == "cuda" and not torch.cuda.is_available():
        raise CourseError("device cuda was asked for, but torch sees no CUDA device here; use device=auto")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return make_vit(recipe).to(device)


def make_vit(sizes: ModelRecipe) -> ViT:
    """A vision transformer of these sizes, with random weights."""
    shape = sizes.n_channels, sizes.n_lat, sizes.n_lon, sizes.patch, sizes.dim, sizes.depth, sizes.heads
    return ViT(*shape, predict_change=sizes.predict_change, fused_attention=sizes.fused_attention)


def load_model(folder: Path) -> ViT:
    """The trained model of a finished run, on the CPU.

    Raises:
        CourseError: the run is not finished, or its weights are not whole.
    """
    weights = load_weights(folder)
    model = make_vit(Recipe.load(folder / "recipe.json"))
    model.load_state_dict(weights)
    return model


def batches(
    split: store.Split,
    recipe: Recipe,
    device: str | torch.device = "cpu",
    skip: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[tuple[Tensor, Tensor]]:
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


def fingerprint(split: store.Split) -> str:
    """What the years hold, and the statistics they are normalised with."""
    digest = hashlib.blake2b(repr(tuple(split.snapshots)).encode(), digest_size=8)
    digest.update(split.means_1C11.tobytes() + split.stds_1C11.tobytes())
    return digest.hexdigest()
