import dataclasses
import json
import resource
from unittest.mock import ANY

import events
import h5py
import numpy as np
import pytest
import torch
from torch import nn

from dltutorial.config import PRESETS
from dltutorial.data import store
from dltutorial.data.loaders import Pairs
from dltutorial.engine import forecasting, run, run_folder
from dltutorial.engine.forecasting import evaluate, make_task
from dltutorial.engine.recipe import LOADERS, Recipe
from dltutorial.errors import CourseError, DataError, RecipeError

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = dataclasses.replace(
    Recipe.of(PRESETS["smoke"], steps=30, eval_every=10),
    n_channels=3, n_lat=16, n_lon=24, dim=32, depth=1, heads=2, global_batch_size=6, log_every=5, device="cpu",
)  # fmt: skip


def train(data, folder, recipe=SMALL, **options):
    return list(run.train(make_task(recipe, data), recipe, folder, progress=False, **options))


@pytest.fixture(scope="module")
def finished(tiny_data, tmp_path_factory, one_thread):
    """(folder, records) of one whole run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train(tiny_data, folder)


def status(folder):
    return json.loads((folder / "status.json").read_text())


def files(folder):
    return sorted(file.relative_to(folder).parts[0] for file in folder.rglob("*") if file.is_file())


# What a run leaves


def test_a_run_keeps_its_recipe_records_weights_and_status(finished):
    folder, seen = finished
    assert files(folder) == ["progress.jsonl", "recipe.json", "status.json", "tensorboard", "weights.pt"]
    assert Recipe.load(folder / "recipe.json") == SMALL
    lines = (folder / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [dataclasses.asdict(record) for record in seen]
    assert status(folder) == {"status": "finished", "recipe": ANY, "data": ANY, "scores": seen[-1].scores}
    assert {"steps": SMALL.steps, "seed": SMALL.seed}.items() <= status(folder)["recipe"].items()


def test_the_tracker_got_the_same_figures(finished):
    folder, seen = finished
    scalars = events.read(folder)
    assert [step for step, _ in scalars["train/loss"]] == [record.step for record in seen]
    assert [value for _, value in scalars["train/loss"]] == pytest.approx([record.loss for record in seen])
    assert len(scalars["valid/rmse_ratio_to_persistence"]) == 3


def test_a_run_learns(finished):
    _, seen = finished
    assert seen[-1].loss < 0.8 * seen[0].loss
    assert seen[-1].scores["valid/rmse_ratio_to_persistence"] < 1


def test_the_same_recipe_gives_the_same_run(finished, tiny_data, tmp_path):
    folder, seen = finished
    again = train(tiny_data, tmp_path / "again")
    assert [record.loss for record in again] == [record.loss for record in seen]
    assert (tmp_path / "again" / "weights.pt").read_bytes() == (folder / "weights.pt").read_bytes()


@pytest.mark.parametrize("loader", LOADERS[1:])
def test_every_loader_gives_the_same_run(finished, tiny_data, tmp_path, loader):
    seen = train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, loader=loader))
    assert [record.loss for record in seen] == pytest.approx([record.loss for record in finished[1]], rel=1e-4)


def test_another_seed_gives_another_run(finished, tiny_data, tmp_path):
    other = train(tiny_data, tmp_path / "other", dataclasses.replace(SMALL, seed=1))
    assert other[-1].loss != finished[1][-1].loss


# Runs that are not whole


def test_a_stopped_run_is_interrupted_and_has_no_weights(tiny_data, tmp_path):
    training = run.train(make_task(SMALL, tiny_data), SMALL, tmp_path / "r", progress=False)
    next(training)
    with pytest.raises(KeyboardInterrupt):
        training.throw(KeyboardInterrupt)
    assert status(tmp_path / "r")["status"] == run_folder.run_status(tmp_path / "r") == "interrupted"
    assert "weights.pt" not in files(tmp_path / "r")


def test_a_diverging_run_is_failed_in_one_line(tiny_data, tmp_path):
    wild = dataclasses.replace(SMALL, learning_rate=1e18, clip_norm=0.0, warmup_steps=0)
    with pytest.raises(CourseError, match="lower learning_rate") as error:
        train(tiny_data, tmp_path / "r", wild)
    assert "\n" not in str(error.value)
    assert run_folder.run_status(tmp_path / "r") == "failed"
    assert "weights.pt" not in files(tmp_path / "r")


def test_nan_deep_in_the_data_is_blamed_on_the_data(own_data, tmp_path, monkeypatch):
    """Of data too large to be read whole before a run."""
    monkeypatch.setattr(forecasting, "_WHOLE_BYTES", 0)
    file = sorted((own_data / "train").glob("*.h5"))[0]
    with h5py.File(file, "r+") as year:
        year["fields"][3, 1, 3, 3] = np.nan
    with pytest.raises(DataError, match=rf"{file.name}, snapshot 3"):
        train(own_data, tmp_path / "r")
    assert run_folder.run_status(tmp_path / "r") == "failed"


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tiny_data, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(CourseError, match=r"cannot write .*weights\.pt.*; make room") as error:
            train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, track=()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert "weights.pt" not in files(tmp_path / "r")
    assert not list((tmp_path / "r").glob("*.partial"))
    assert run_folder.run_status(tmp_path / "r") != "finished"


def test_a_split_without_a_pair_is_named_before_training(own_data, tmp_path):
    with h5py.File(own_data / "valid" / "2016.h5", "r+") as year:
        one = year["fields"][:1]
        del year["fields"]
        year["fields"] = one
    with pytest.raises(DataError, match="valid has no two snapshots in a row"):
        train(own_data, tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_run_is_not_overwritten_unless_asked(tiny_data, tmp_path):
    folder = tmp_path / "r"
    train(tiny_data, folder)
    before = (folder / "weights.pt").stat().st_mtime_ns
    with pytest.raises(CourseError, match="holds a run already"):
        train(tiny_data, folder)
    assert (folder / "weights.pt").stat().st_mtime_ns == before
    train(tiny_data, folder, dataclasses.replace(SMALL, seed=5), overwrite=True)
    assert Recipe.load(folder / "recipe.json").seed == 5


# Scores


class Add(nn.Module):
    """A forecast: the state now plus a number."""

    def __init__(self, number):
        super().__init__()
        self.number = nn.Parameter(torch.tensor(number))

    def forward(self, x_BCHW):
        return x_BCHW + self.number


def by_hand(data, geometry):
    """The error of persistence, and its anomaly correlation, with nothing but numpy."""
    fields = h5py.File(data / "valid" / "2016.h5")["fields"][:].astype(np.float64)
    means, stds, climate = (np.load(data / "stats" / f"{n}.npy") for n in ("global_means", "global_stds", "time_means"))
    normal, climate = (fields - means) / stds, (climate - means) / stds
    weights = np.ones((16, 1))
    if geometry == "sphere":
        weights = np.cos(np.deg2rad(np.linspace(90, -90, 16)))[:, None]
        weights = weights / weights.mean()
    now, later = normal[:-1], normal[1:]
    f, t = now - climate, later - climate
    product, f2, t2 = ((weights * x).mean((-2, -1)) for x in (f * t, f**2, t**2))
    return np.sqrt((weights * (now - later) ** 2).mean((-2, -1))).mean(), (product / np.sqrt(f2 * t2)).mean()


@pytest.mark.parametrize("geometry", ["sphere", "beta-plane"])
def test_scores_are_those_worked_out_by_hand(own_data, geometry):
    (own_data / "dataset.json").write_text(json.dumps({"geometry": geometry}))
    persistence, correlation = by_hand(own_data, geometry)
    scores = evaluate(Add(0.0), Pairs(store.open_split(own_data, "valid")), batch_size=4)
    assert scores["valid/rmse"] == pytest.approx(persistence, rel=1e-4)
    assert scores["valid/anomaly_correlation"] == pytest.approx(correlation, rel=1e-4)
    assert scores[forecasting.SCORE] == 1.0


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_the_mode_of_the_model(tiny_data, training):
    model = Add(0.0).train(training)
    evaluate(model, Pairs(store.open_split(tiny_data, "valid")))
    assert model.training is training


# Recipe, device, data


def test_data_of_another_shape_are_refused_in_one_line(tiny_data, tmp_path):
    with pytest.raises(RecipeError, match=r"\(5, 64, 128\), the data have \(3, 16, 24\)"):
        train(tiny_data, tmp_path / "r", Recipe())
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("knob", [{"cuda_graph": True}, {"precision": "tf32"}])
def test_what_this_machine_cannot_do_is_refused_before_a_folder_is_made(tiny_data, tmp_path, monkeypatch, knob):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CourseError, match="needs"):
        train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, **knob))
    assert not (tmp_path / "r").exists()


def test_building_a_model_leaves_the_global_seed_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    model = forecasting.build_model(SMALL)
    assert torch.equal(torch.rand(3), expected)
    again = forecasting.build_model(SMALL)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
