"""``dltutorial train``: one training run from the command line, new or gone on with."""

import dataclasses
import datetime
from pathlib import Path

from dltutorial import paths
from dltutorial.config import Preset, Recipe, preset
from dltutorial.data import store, weather
from dltutorial.data.workers import workers_in_one_line
from dltutorial.errors import CourseError
from dltutorial.models.vit import ViT, count_parameters
from dltutorial.record import records
from dltutorial.train import resume as resuming
from dltutorial.train import run
from dltutorial.train.team import ALONE, Team, check


def train(
    preset_name: str,
    knobs: dict,
    *,
    data: Path | None,
    name: str | None,
    overwrite: bool,
    resume: bool = False,
    team: Team = ALONE,
) -> Path:
    """Simulate the data if none are given, train, print one line per record; returns the run's folder.

    The shape of a sample is taken from the data where no knob sets it. A run to resume has its knobs already; those
    given here must agree. Every rank of a team calls this with the same arguments; rank 0 prints.

    Raises:
        Interrupted: SIGTERM or SIGUSR1 came; a checkpoint is written.
        CourseError: a knob, name, data set or folder that cannot be.
    """
    if resume and name is None:
        raise CourseError("--resume needs to know which run; give its --name")
    name = team.tell(f"train-{datetime.datetime.now():%Y%m%d-%H%M%S}" if name is None else name)
    folder = paths.inside(paths.runs_dir(), name)
    if team.leads and not resume:
        run.check_folder(folder, overwrite)
    before = resuming.previous_recipe(folder) if resume else None
    base, knobs = _base(preset_name, knobs, before)
    if data is None:
        check(Recipe.of(base, **knobs), team)  # what cannot be is refused before anything is simulated
        data = weather.ensure(base, progress=team.leads)
    n_channels, n_lat, n_lon = store.open_split(data, "train").shape
    recipe = Recipe.of(base, **{"n_channels": n_channels, "n_lat": n_lat, "n_lon": n_lon} | knobs)
    check(recipe, team)
    say = print if team.leads else _nothing
    say(f"{folder}: {count_parameters(ViT(recipe)):,} parameters, {recipe.steps} updates of {recipe.global_batch_size}")
    seen = None
    again = {"overwrite": overwrite, "resume": resume}
    with workers_in_one_line(), resuming.Warned() as warned:
        for seen in run.train(recipe, data, folder, **again, progress=team.leads, asked_to_end=warned, team=team):
            if seen.scores:
                scores = " · ".join(f"{key.removeprefix('valid/')} {value:.3f}" for key, value in seen.scores.items())
                say(f"step {seen.step}: loss {seen.loss:.4f} · {seen.samples_per_s:.1f} samples/s · {scores}")
    if seen is None:
        say(f"{folder} is finished already, after {recipe.steps} updates; nothing was done")
        return folder
    for what, value in seen.scores.items() if team.leads else ():
        records.Writer("train", recipe.preset).write(what, value, run=folder.name, steps=seen.step)
    return folder


def _nothing(_line: str) -> None:
    """What ranks other than the first say."""


def _base(preset_name: str, knobs: dict, before: Recipe | None) -> tuple[Preset, dict]:
    """The preset, and the knobs on top of it: all of a run that is to be resumed, unless a preset was named."""
    if before is None or preset_name != "auto":
        return preset(preset_name), knobs
    kept = dataclasses.asdict(before)
    return preset(kept.pop("preset")), kept | knobs
