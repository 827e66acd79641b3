"""``dltutorial train``: one training run from the command line."""

import datetime
from pathlib import Path

from dltutorial import machine, paths
from dltutorial.config import Preset, Recipe
from dltutorial.data import store, weather
from dltutorial.data.loaders import workers_in_one_line
from dltutorial.errors import CourseError
from dltutorial.models.vit import ViT, count_parameters
from dltutorial.observe import records
from dltutorial.training import run


def train(preset: Preset, knobs: dict, *, data: Path | None, name: str | None, overwrite: bool) -> Path:
    """Simulate the data if none are given, train, print one line per record; returns the run's folder.

    The shape of a sample is taken from the data where no knob sets it.

    Raises:
        CourseError: a knob, name, data set or folder that cannot be.
    """
    ranks = machine.RankInfo.from_env()
    if ranks.world_size > 1:
        raise CourseError(
            f"this version trains on one rank, but {ranks.launcher} started {ranks.world_size}; "
            "start it once, without torchrun or srun"
        )
    name = f"train-{datetime.datetime.now():%Y%m%d-%H%M%S}" if name is None else name
    folder = paths.inside(paths.runs_dir(), name)
    run.check_folder(folder, overwrite)
    if data is None:
        Recipe.of(preset, **knobs)  # a knob that cannot be is refused before anything is simulated
        data = weather.ensure(preset)
    n_channels, n_lat, n_lon = store.open_split(data, "train").shape
    recipe = Recipe.of(preset, **{"n_channels": n_channels, "n_lat": n_lat, "n_lon": n_lon} | knobs)
    print(
        f"{folder}: {count_parameters(ViT(recipe)):,} parameters, {recipe.steps} updates of {recipe.global_batch_size}"
    )
    with workers_in_one_line():
        for seen in run.train(recipe, data, folder, overwrite=overwrite):
            if seen.scores:
                scores = " · ".join(f"{key.removeprefix('valid/')} {value:.3f}" for key, value in seen.scores.items())
                print(f"step {seen.step}: loss {seen.loss:.4f} · {seen.samples_per_s:.1f} samples/s · {scores}")
    for what, value in seen.scores.items():
        records.Writer("train", recipe.preset).write(what, value, run=folder.name, steps=seen.step)
    return folder
