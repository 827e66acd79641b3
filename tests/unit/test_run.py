import dataclasses
import errno
import functools
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from unittest.mock import ANY

import events
import h5py
import numpy as np
import pytest
import torch
from torch import nn

from dltutorial import cli, config
from dltutorial.config import PRESETS, Recipe
from dltutorial.data import store
from dltutorial.data.loaders import LOADERS, Pairs
from dltutorial.errors import CheckpointError, CourseError, DataError, DivergedError, RecipeError
from dltutorial.record import track
from dltutorial.train import forecasting, run, run_folder
from dltutorial.train.forecasting import evaluate, make_task

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


def test_the_loaded_model_scores_as_the_last_record(finished, tiny_data):
    folder, seen = finished
    model = forecasting.build_model(SMALL)
    model.load_state_dict(torch.load(folder / "weights.pt"))
    assert evaluate(model, Pairs(store.open_split(tiny_data, "valid"))) == pytest.approx(seen[-1].scores)


def test_the_same_recipe_gives_the_same_run(finished, tiny_data, tmp_path):
    folder, seen = finished
    again = train(tiny_data, tmp_path / "again")
    assert [record.loss for record in again] == [record.loss for record in seen]
    assert (tmp_path / "again" / "weights.pt").read_bytes() == (folder / "weights.pt").read_bytes()


@pytest.mark.parametrize("loader", config.LOADERS[1:])
def test_every_loader_gives_the_same_run(finished, tiny_data, tmp_path, loader):
    seen = train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, loader=loader))
    assert [record.loss for record in seen] == pytest.approx([record.loss for record in finished[1]], rel=1e-4)


def test_the_loaders_of_a_recipe_are_the_ladders():
    assert ("plain", *LOADERS) == config.LOADERS


def test_another_seed_gives_another_run(finished, tiny_data, tmp_path):
    other = train(tiny_data, tmp_path / "other", dataclasses.replace(SMALL, seed=1))
    assert other[-1].loss != finished[1][-1].loss


# Runs that are not whole


@pytest.mark.parametrize("how", ["close", "interrupt"])
def test_a_stopped_run_is_interrupted_and_has_no_weights(tiny_data, tmp_path, how):
    training = run.train(make_task(SMALL, tiny_data), SMALL, tmp_path / "r", progress=False)
    next(training)
    if how == "close":
        training.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            training.throw(KeyboardInterrupt)
    assert status(tmp_path / "r")["status"] == run_folder.run_status(tmp_path / "r") == "interrupted"
    assert "weights.pt" not in files(tmp_path / "r")


def test_a_run_in_progress_is_not_taken_for_whole(tiny_data, tmp_path):
    training = run.train(make_task(SMALL, tiny_data), SMALL, tmp_path / "r", progress=False)
    next(training)
    assert run_folder.run_status(tmp_path / "r") == "running"
    assert "weights.pt" not in files(tmp_path / "r")
    training.close()


def test_a_diverging_run_is_failed_in_one_line(tiny_data, tmp_path):
    wild = dataclasses.replace(SMALL, learning_rate=1e18, clip_norm=0.0, warmup_steps=0)
    with pytest.raises(CourseError, match="lower learning_rate") as error:
        train(tiny_data, tmp_path / "r", wild)
    assert "\n" not in str(error.value)
    assert run_folder.run_status(tmp_path / "r") == "failed"
    assert "weights.pt" not in files(tmp_path / "r")


def test_a_tracker_that_cannot_start_makes_a_failed_run(tiny_data, tmp_path, monkeypatch):
    def tracker(*_):
        raise CourseError("no key")

    monkeypatch.setattr(track, "Tracker", tracker)
    with pytest.raises(CourseError, match="no key"):
        train(tiny_data, tmp_path / "r")
    assert run_folder.run_status(tmp_path / "r") == "failed"


@pytest.mark.parametrize("split", ["train", "valid"])
def test_nan_deep_in_the_data_is_blamed_on_the_data(own_data, tmp_path, split, monkeypatch):
    """Of data too large to be read whole before a run."""
    monkeypatch.setattr(forecasting, "_WHOLE_BYTES", 0)
    file = sorted((own_data / split).glob("*.h5"))[0]
    with h5py.File(file, "r+") as year:
        year["fields"][3, 1, 3, 3] = np.nan
    with pytest.raises(DataError, match=rf"{file.name}, snapshot 3"):
        train(own_data, tmp_path / "r")
    assert run_folder.run_status(tmp_path / "r") == "failed"


def test_a_worker_killed_in_the_midst_of_a_step_is_one_line(tiny_data, tmp_path, monkeypatch):
    def long_step(task, *_, **__):
        batches = iter(task.data(0))
        next(batches)
        multiprocessing.active_children()[0].kill()
        time.sleep(60)  # a signal tells of the death, and torch raises wherever the process is
        yield

    monkeypatch.setattr(run, "loop", long_step)
    recipe = dataclasses.replace(SMALL, loader="lean", workers=1)
    with pytest.raises(DataError, match=r"a loading process is gone: .*killed by signal.*; lower workers") as error:
        train(tiny_data, tmp_path / "r", recipe)
    assert "\n" not in str(error.value)
    assert run_folder.run_status(tmp_path / "r") == "failed"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "missing"),
        ("", "damaged"),
        ("{}", "damaged"),
        ("[]", "damaged"),
        ('{"status": "draft"}', "damaged"),
        ("[" * 200_000, "damaged"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_status_of_what_is_no_run(tmp_path, content, expected):
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    assert run_folder.run_status(tmp_path) == expected


@pytest.mark.parametrize(("most_bytes", "culprit"), [(4096, "weights.pt"), (200, "recipe.json")])
def test_a_full_disk_is_one_line_and_leaves_no_half_file(tiny_data, tmp_path, most_bytes, culprit):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        with pytest.raises(CourseError, match=f"cannot write .*{culprit}.*; make room") as error:
            train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, track=()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert not {"weights.pt", culprit} & set(files(tmp_path / "r"))
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


# Overwriting


def test_a_run_is_not_overwritten_unless_asked(finished, tiny_data, tmp_path):
    folder = tmp_path / "r"
    train(tiny_data, folder)
    before = (folder / "weights.pt").stat().st_mtime_ns
    with pytest.raises(CourseError, match="holds a run already"):
        train(tiny_data, folder)
    assert (folder / "weights.pt").stat().st_mtime_ns == before
    train(tiny_data, folder, dataclasses.replace(SMALL, seed=5), overwrite=True)
    assert Recipe.load(folder / "recipe.json").seed == 5
    assert len(list((folder / "tensorboard").iterdir())) == 1


def test_what_cannot_be_removed_of_an_overwritten_run_is_in_nobodys_way(tiny_data, finished, tmp_path, capsys):
    """Such as a file that another program has open on NFS, which stays under a name of NFS's own."""
    shutil.copytree(finished[0], folder := tmp_path / "r")
    (mine := tmp_path / ".r.removed-0123abcd" / ".nfs00001").parent.mkdir()
    mine.write_text("open")
    (left := tmp_path / ".r.removed-89abcdef").mkdir()
    (left / "weights.pt").touch()
    (named_so := tmp_path / ".r.removed" / "weights.pt").parent.mkdir()
    named_so.touch()
    for seed in (5, 6):
        train(tiny_data, folder, dataclasses.replace(SMALL, seed=seed), overwrite=True)
        assert Recipe.load(folder / "recipe.json").seed == seed
        assert f"{mine.parent} is left of a run: look what it holds" in capsys.readouterr().err
    assert mine.read_text() == "open"
    assert named_so.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == [".r.removed", ".r.removed-0123abcd", "r"]


def test_a_trackers_folder_behind_a_link_is_anothers(tiny_data, finished, tmp_path):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    (folder / "weights.pt").unlink()
    (folder / "tensorboard").rename(other := tmp_path / "other")
    (folder / "tensorboard").symlink_to(other)
    before = list(other.iterdir())
    for how in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(CourseError, match="tensorboard is a link, and what lies behind it"):
            train(tiny_data, folder, **how)
    assert list(other.iterdir()) == before


def test_what_comes_while_an_overwritten_run_is_removed_stays_and_is_told_of(
    tiny_data, finished, tmp_path, capsys, monkeypatch
):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    unlink = Path.unlink

    def late(file, **how):
        if ".removed-" in str(file):
            (file.parents[len(file.relative_to(tmp_path).parts) - 2] / "tensorboard" / "notes.md").write_text(
                "precious"
            )
        unlink(file, **how)

    monkeypatch.setattr(Path, "unlink", late)
    train(tiny_data, folder, dataclasses.replace(SMALL, seed=5), overwrite=True)
    (left,) = tmp_path.glob(".r.removed-*")
    assert [file for file in left.rglob("*") if file.is_file()] == [left / "tensorboard" / "notes.md"]
    assert (left / "tensorboard" / "notes.md").read_text() == "precious"
    assert f"{left} is left of a run: look what it holds that no run writes" in capsys.readouterr().err


def test_nothing_of_your_own_goes_with_what_a_kill_has_left_of_a_removal(tiny_data, tmp_path):
    """Nor what a link there leads to."""
    (notes := tmp_path / ".r.removed-0123abcd" / "wandb" / "notes.md").parent.mkdir(parents=True)
    notes.write_text("precious")
    (other := tmp_path / "other").mkdir()
    for place in (tmp_path, notes.parents[1] / "wandb"):
        (place / ".r.removed-89abcdef").symlink_to(other)
    (notes.parents[1] / "checkpoints").symlink_to(other)
    for file in (notes.parents[1] / "weights.pt", other / "weights.pt", other / "step-00000002-0123456789abcdef.pt"):
        file.touch()
    train(tiny_data, tmp_path / "r")
    assert notes.read_text() == "precious"
    assert sorted(file.name for file in other.iterdir()) == ["step-00000002-0123456789abcdef.pt", "weights.pt"]
    assert not (notes.parents[1] / "weights.pt").exists()
    assert not (notes.parents[1] / "checkpoints").is_symlink()


def test_a_file_of_your_own_in_a_run_that_does_not_start_stays(finished, tiny_data, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished[0], folder := tmp_path / "r")

    def tracker(*_):
        (folder / "notes.md").write_text("precious")
        raise CourseError("no key")

    monkeypatch.setattr(track, "Tracker", tracker)
    with pytest.raises(CourseError, match="no key"):
        train(tiny_data, folder, overwrite=True)
    (left,) = tmp_path.glob(".r.removed-*")
    assert [file.name for file in left.iterdir()] == ["notes.md"]
    assert f"{left} is left of a run" in capsys.readouterr().err
    assert run_folder.run_status(folder) == "finished"
    assert (folder / "weights.pt").read_bytes() == (finished[0] / "weights.pt").read_bytes()


def test_event_files_of_ones_own_are_not_overwritten_with_a_run(tiny_data, finished, tmp_path):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    (folder / "tensorboard" / "events.out.tfevents.1700000000.here.1.0").write_text("mine")
    with pytest.raises(CourseError, match=r"tensorboard/events.*1\.0, which no run removes"):
        train(tiny_data, folder, overwrite=True)


def test_a_folder_that_is_no_run_is_never_removed(tiny_data, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CourseError, match="not a training run"):
        train(tiny_data, tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_an_empty_folder_is_no_run_that_was_overwritten_and_keeps_its_rights(tiny_data, tmp_path, capsys):
    """Such as a container's volume, a folder that a group shares, or what a full disk has left of a start."""
    (folder := tmp_path / "r").mkdir()
    folder.chmod(0o2775)
    before = folder.stat()
    train(tiny_data, folder)
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert capsys.readouterr().err == ""
    train(tiny_data, folder, dataclasses.replace(SMALL, seed=5), overwrite=True)


def test_a_run_that_is_to_be_overwritten_stays_where_the_new_one_cannot_start(
    finished, tiny_data, tmp_path, monkeypatch, capsys
):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    monkeypatch.setenv("WANDB_MODE", "bogus")
    with pytest.raises(CourseError, match="W&B could not start"):
        train(tiny_data, folder, dataclasses.replace(SMALL, track=("wandb",)), overwrite=True)
    assert "is kept" not in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["r"]


def test_a_run_that_a_kill_has_left_aside_is_back_where_the_new_one_cannot_start(
    finished, tiny_data, tmp_path, monkeypatch
):
    shutil.copytree(finished[0], aside := tmp_path / ".r.overwritten")
    before = {file.name: file.read_bytes() for file in aside.iterdir() if file.is_file()}
    with pytest.raises(CourseError, match="is in the way; look what it holds"):
        train(tiny_data, tmp_path / "r")
    SMALL.save(tmp_path / "r" / "recipe.json")
    monkeypatch.setenv("WANDB_MODE", "bogus")
    with pytest.raises(CourseError, match="W&B could not start"):
        train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, track=("wandb",)), overwrite=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "r").iterdir() if file.is_file()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["r"]


def diverging(data):
    task = make_task(SMALL, data)
    return dataclasses.replace(task, loss=lambda model, x, y: model(x).mean() * torch.nan)


def test_a_run_that_is_to_be_overwritten_stays_until_the_new_one_has_something(finished, tiny_data, tmp_path, capsys):
    """A loss that is NaN, also twice, costs nothing that was there; one that is not, ends it."""
    shutil.copytree(finished[0], folder := tmp_path / "r")
    aside, before = tmp_path / ".r.overwritten", (folder / "weights.pt").read_bytes()
    for _ in range(2):
        with pytest.raises(DivergedError):
            list(run.train(diverging(tiny_data), SMALL, folder, progress=False, overwrite=True))
        assert (aside / "weights.pt").read_bytes() == before
        assert f"the run that was to be overwritten is kept, in {aside}" in capsys.readouterr().err
        assert not (folder / "weights.pt").exists()
    train(tiny_data, folder, dataclasses.replace(SMALL, seed=5), overwrite=True)
    assert not aside.exists()
    assert Recipe.load(folder / "recipe.json").seed == 5


def test_a_new_run_that_is_killed_before_its_first_checkpoint_has_not_cost_the_older_one(finished, tiny_data, tmp_path):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    recipe = dataclasses.replace(SMALL, checkpoint_every=10)
    seen = run.train(make_task(recipe, tiny_data), recipe, folder, progress=False, overwrite=True)
    next(seen)
    assert (tmp_path / ".r.overwritten" / "weights.pt").exists()
    for _ in range(2):
        next(seen)
    assert not (tmp_path / ".r.overwritten").exists()
    seen.close()


@pytest.mark.parametrize("damage", ["removed", "emptied", "killed before it"])
def test_weights_that_are_whole_are_no_run_to_begin_anew(finished, tiny_data, tmp_path, damage):
    """A kill, or a full disk, came between them and the status."""
    shutil.copytree(finished[0], folder := tmp_path / "r")
    before, said = (folder / "weights.pt").read_bytes(), status(folder)
    (folder / "status.json").write_text(run_folder.RUNNING if damage == "killed before it" else "")
    if damage == "removed":
        (folder / "status.json").unlink()
    (folder / ".status.json.0123abcd.partial").touch()
    with pytest.raises(CheckpointError, match="was trained with seed"):
        train(tiny_data, folder, dataclasses.replace(SMALL, seed=9), resume=True)
    assert train(tiny_data, folder, resume=True) == []
    assert (folder / "weights.pt").read_bytes() == before
    assert status(folder) == said
    assert not list(folder.glob(".*.partial"))


def test_a_file_of_your_own_in_a_run_that_is_overwritten_stays(finished, tiny_data, tmp_path, capsys):
    """Written there while the new one trained, as by a shell that is in that folder."""
    shutil.copytree(finished[0], folder := tmp_path / "r")
    recipe = dataclasses.replace(SMALL, checkpoint_every=10)
    seen = run.train(make_task(recipe, tiny_data), recipe, folder, progress=False, overwrite=True)
    next(seen)
    (mine := tmp_path / ".r.overwritten" / "notes.txt").write_text("precious")
    assert len(list(seen)) > 1
    assert mine.read_text() == "precious"
    assert "is kept, in" in capsys.readouterr().err


def test_a_run_that_ends_while_another_process_waits_for_it_is_not_begun_anew(
    finished, tiny_data, tmp_path, monkeypatch
):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    before, look = (folder / "weights.pt").read_bytes(), run_folder.is_finished
    monkeypatch.setattr(run_folder, "is_finished", lambda *given, mine=False: mine and look(*given, mine=mine))
    for text in ((folder / "status.json").read_text(), run_folder.RUNNING):  # the owner died after its weights
        (folder / "status.json").write_text(text)
        assert train(tiny_data, folder, resume=True) == []
        assert (folder / "weights.pt").read_bytes() == before
        assert status(folder)["status"] == "finished"


def test_a_name_whose_folder_is_gone_costs_no_run_that_was_to_be_overwritten(finished, tiny_data, tmp_path):
    shutil.copytree(finished[0], aside := tmp_path / ".r.overwritten")
    for resume in (False, True):
        with pytest.raises(CourseError, match="is in the way; look what it holds"):
            train(tiny_data, tmp_path / "r", resume=resume)
    assert (aside / "weights.pt").exists()


def test_a_finished_run_is_what_was_trained_whatever_its_recipe_was_edited_to(finished, tiny_data, tmp_path):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    longer = dataclasses.replace(SMALL, steps=60)
    longer.save(folder / "recipe.json")
    with pytest.raises(CheckpointError, match=r"was trained with steps=30 \(now 60\)"):
        train(tiny_data, folder, longer, resume=True)
    assert train(tiny_data, folder, SMALL, resume=True) == []


def test_what_is_no_run_is_not_removed_from_where_runs_are_put_aside(tiny_data, tmp_path):
    (mine := tmp_path / ".r.overwritten" / "mine.txt").parent.mkdir()
    mine.write_text("precious")
    with pytest.raises(CourseError, match="is in the way; look what it holds"):
        train(tiny_data, tmp_path / "r")
    assert mine.read_text() == "precious"


def test_checkpoints_behind_a_link_are_anothers(finished, tiny_data, tmp_path):
    shutil.copytree(finished[0], folder := tmp_path / "r")
    (other := tmp_path / "another's").mkdir()
    (precious := other / "step-00000002-0123456789abcdef.pt").write_bytes(b"precious")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "checkpoints").symlink_to(other)
    (folder / "weights.pt").unlink()
    for how in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(CourseError, match="is a link, and what lies behind it"):
            train(tiny_data, folder, **how)
    assert [file.read_bytes() for file in other.iterdir()] == [precious.read_bytes()] == [b"precious"]
    (half := other / ".step-00000004-0123456789abcdef.pt.0123abcd.partial").touch()  # it is being written
    shutil.copy(finished[0] / "weights.pt", folder)
    (folder / "status.json").write_text(run_folder.RUNNING)
    with pytest.raises(CourseError, match="is a link, and what lies behind it"):
        train(tiny_data, folder, resume=True)
    assert half.exists()


@pytest.mark.parametrize("how", ["overwrite", "resume"])
@pytest.mark.parametrize(
    "there",
    [
        {"status.json": '{"state": "draft"}', "weights.pt": "precious"},
        {"status.json": '{"status": "draft"}', "weights.pt": "precious"},
        {"recipe.json": '{"eggs": 3}', "weights.pt": "precious"},
        {"recipe.json": "{}", "weights.pt": "precious"},
        {"recipe.json": "no JSON", "weights.pt": "precious"},
        {"thesis.partial": "precious"},
    ],
    ids=str,
)
def test_a_foreign_folder_that_has_a_file_named_like_a_runs_is_left_alone(tiny_data, tmp_path, there, how):
    for name, text in there.items():
        (tmp_path / name).write_text(text)
    before = {file: file.read_text() for file in tmp_path.iterdir()}
    why = "not a training run" if how == "overwrite" else ""
    with pytest.raises(CourseError, match=why) as error:
        train(tiny_data, tmp_path, **{how: True})
    assert "\n" not in str(error.value)
    assert {file: file.read_text() for file in tmp_path.iterdir()} == before


OWN = [
    "notes.md",
    "checkpoints/best.pt",
    "tensorboard/notes.md",
    "tensorboard/mine/events.out.tfevents.1",
    "wandb/notes.md",
    "wandb/offline-run-1-a/notes.md",
    "mine/of/mine.txt",
    "tensorboard/events.out.mynotes",
    "wandb/debug-my.log",
    "checkpoints/weights.pt",
    *(f"wandb/offline-run-20260101_000000-a1/{name}" for name in (
        "files/notes.md", "files/media/images/mine.png", "logs/mine.log", "tmp/code/mine.py", "run-mine.wandb"
    )),
]  # fmt: skip


@pytest.mark.parametrize("own", OWN)
def test_a_run_with_a_file_of_your_own_is_not_overwritten_but_can_be_resumed(finished, tiny_data, tmp_path, own):
    folder = shutil.copytree(finished[0], tmp_path / "r")
    (folder / own).parent.mkdir(parents=True, exist_ok=True)
    (folder / own).write_text("precious")
    with pytest.raises(CourseError, match=r"r holds (\S+), which no run removes: move it away") as error:
        train(tiny_data, folder, overwrite=True)
    assert "\n" not in str(error.value)
    assert train(tiny_data, folder, resume=True) == []
    assert (folder / own).read_text() == "precious"
    assert run_folder.run_status(folder) == "finished"


@pytest.mark.parametrize("own", OWN)
def test_a_run_without_a_checkpoint_starts_anew_and_leaves_a_file_of_your_own(tiny_data, tmp_path, own):
    train(tiny_data, tmp_path / "r")
    (tmp_path / "r" / "weights.pt").unlink()
    shutil.rmtree(tmp_path / "r" / "checkpoints", ignore_errors=True)
    (tmp_path / "r" / "status.json").write_text(run_folder.RUNNING)
    before = list((tmp_path / "r" / "tensorboard").iterdir())
    (tmp_path / "r" / own).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "r" / own).write_text("precious")
    assert train(tiny_data, tmp_path / "r", resume=True)
    assert (tmp_path / "r" / own).read_text() == "precious"
    assert all(file.exists() for file in before)


def test_what_a_run_has_made_is_kept_where_it_starts_anew(tiny_data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracked = dataclasses.replace(SMALL, track=("tensorboard", "wandb"), log_every=1)
    folder = tmp_path / "r"
    train(tiny_data, folder, tracked)
    (folder / "weights.pt").write_bytes(b"damaged")
    made = {
        file: file.read_bytes()
        for pattern in ("tensorboard/*", "wandb/*run-*/*.wandb")
        for file in folder.glob(pattern)
    }
    records = (folder / "progress.jsonl").read_text()
    assert len(train(tiny_data, folder, tracked, resume=True)) == SMALL.steps
    assert (
        "it starts anew; what it had made is now progress.mine1.jsonl and weights.mine1.pt" in capsys.readouterr().err
    )
    assert (folder / "progress.mine1.jsonl").read_text() == records
    assert (folder / "weights.mine1.pt").read_bytes() == b"damaged"
    assert len(made) == 2
    assert {file: file.read_bytes() for file in made} == made
    assert [step for step, _ in events.read(folder)["train/loss"]] == list(range(1, SMALL.steps + 1))
    (folder / "weights.pt").unlink()
    train(tiny_data, folder, tracked, resume=True)
    assert (folder / "progress.mine2.jsonl").exists()
    with pytest.raises(CourseError, match=r"holds progress\.mine1\.jsonl, which no run removes: move it away"):
        train(tiny_data, folder, tracked, overwrite=True)


def test_a_file_where_the_overwritten_run_would_be_kept_is_told_as_such(tiny_data, tmp_path):
    train(tiny_data, tmp_path / "r")
    (tmp_path / ".r.overwritten").write_text("precious")
    with pytest.raises(CourseError, match=r"\.r\.overwritten is in the way"):
        train(tiny_data, tmp_path / "r", overwrite=True)
    assert run_folder.run_status(tmp_path / "r") == "finished"


def test_a_run_that_has_begun_to_replace_another_is_resumed(tiny_data, tmp_path):
    recipe = dataclasses.replace(SMALL, checkpoint_every=2)
    train(tiny_data, tmp_path / "r", recipe)
    shutil.copytree(tmp_path / "r", tmp_path / ".r.overwritten")
    (tmp_path / "r" / "weights.pt").unlink()
    told = r"r has begun to replace the run in .*\.r\.overwritten: --resume it; if it is finished, remove the older"
    with pytest.raises(CourseError, match=told):
        train(tiny_data, tmp_path / "r", recipe, overwrite=True)
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    assert not (tmp_path / ".r.overwritten").exists()
    assert train(tiny_data, tmp_path / "r", recipe, overwrite=True)


def test_all_that_trackers_write_can_be_overwritten(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracked = dataclasses.replace(SMALL, track=("tensorboard", "wandb"))
    train(tiny_data, tmp_path / "r", tracked)
    (run,) = (tmp_path / "r" / "wandb").glob("offline-run-*/*.wandb")
    run.with_name(f"{run.name}.synced").touch()
    run.with_name(f"{run.name}.syncstate").touch()
    assert train(tiny_data, tmp_path / "r", overwrite=True)
    assert "wandb" not in files(tmp_path / "r")


def test_all_that_a_run_and_a_kill_leave_can_be_overwritten(tiny_data, tmp_path):
    folder = tmp_path / "r"
    train(tiny_data, folder, dataclasses.replace(SMALL, checkpoint_every=10))
    for file in [folder / "weights.pt", *(folder / "checkpoints").iterdir()]:
        file.with_name(f".{file.name}.0123abcd.partial").touch()
        file.rename(f"{file}.damaged") if file.parent != folder else file.unlink()
    (folder / "wandb").mkdir()
    (folder / "status.json").unlink()
    train(tiny_data, folder, overwrite=True)
    assert files(folder) == ["progress.jsonl", "recipe.json", "status.json", "tensorboard", "weights.pt"]


def test_what_a_kill_leaves_of_a_start_is_taken_for_a_new_run(tiny_data, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / ".recipe.json.0123abcd.partial").touch()
    train(tiny_data, tmp_path / "r")
    assert run_folder.run_status(tmp_path / "r") == "finished"


def test_what_is_left_of_a_run_can_be_overwritten_but_not_resumed(tiny_data, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "status.json").write_text('{"status": "failed"}')
    with pytest.raises(CourseError, match="not a training run"):
        train(tiny_data, tmp_path / "r", resume=True)
    with pytest.raises(CourseError, match="holds a run already"):
        train(tiny_data, tmp_path / "r")
    train(tiny_data, tmp_path / "r", overwrite=True)
    assert run_folder.run_status(tmp_path / "r") == "finished"


@pytest.mark.parametrize("again", [{}, {"resume": True}])
def test_a_run_that_lost_its_recipe_is_told_so(tiny_data, tmp_path, again):
    """A purge of old files takes it first: it is written once."""
    train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, checkpoint_every=2))
    for name in ("recipe.json", "weights.pt", "progress.jsonl"):
        (tmp_path / "r" / name).unlink()
    (tmp_path / "r" / "status.json").write_text(run_folder.RUNNING)
    before = files(tmp_path / "r")
    with pytest.raises(CourseError, match=r"has lost its recipe\.json, not its checkpoints: put that back, or rename"):
        train(tiny_data, tmp_path / "r", **again)
    assert files(tmp_path / "r") == before
    assert train(tiny_data, tmp_path / "r", overwrite=True)


def test_a_refused_recipe_leaves_an_older_run_alone(tiny_data, tmp_path):
    train(tiny_data, tmp_path / "r")
    wrong = dataclasses.replace(SMALL, n_channels=4)
    with pytest.raises(RecipeError, match="n_channels"):
        train(tiny_data, tmp_path / "r", wrong, overwrite=True)
    with pytest.raises(DataError, match="batch of 99"):
        train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, global_batch_size=99), overwrite=True)
    assert run_folder.run_status(tmp_path / "r") == "finished"


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": True}])
def test_a_run_in_progress_is_refused_to_all_others_and_unharmed(tiny_data, tmp_path, how):
    folder = tmp_path / "r"
    recipe = dataclasses.replace(SMALL, checkpoint_every=5, track=())  # TensorBoard writes when it likes
    training = run.train(make_task(recipe, tiny_data), recipe, folder, progress=False)
    next(training)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(CourseError, match="is being trained by this process") as error:
        train(tiny_data, folder, dataclasses.replace(recipe, seed=3), **how)
    assert "\n" not in str(error.value)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    list(training)
    assert run_folder.run_status(folder) == "finished"
    assert [entry.name for entry in tmp_path.iterdir()] == ["r"]


def test_a_run_whose_lock_was_taken_from_it_ends_and_writes_no_more(tiny_data, tmp_path):
    training = run.train(make_task(SMALL, tiny_data), SMALL, tmp_path / "r", progress=False)
    next(training)
    (tmp_path / ".r.lock").unlink()
    assert run_folder.run_status(tmp_path / "r") == "running"
    before = {file: file.read_bytes() for file in (tmp_path / "r").glob("*.json*")}
    with pytest.raises(CourseError, match="has another owner by now"):
        list(training)
    assert {file: file.read_bytes() for file in (tmp_path / "r").glob("*.json*")} == before
    assert run_folder.run_status(tmp_path / "r") == "killed"
    assert "weights.pt" not in files(tmp_path / "r")


@pytest.mark.parametrize("another", ["folder", "link", "", "copy"])
def test_a_run_whose_folder_was_exchanged_ends_and_leaves_the_other_alone(tiny_data, tmp_path, another):
    train(tiny_data, tmp_path / "other")
    recipe = dataclasses.replace(SMALL, checkpoint_every=2, track=())
    training = run.train(make_task(recipe, tiny_data), recipe, tmp_path / "r", progress=False)
    next(training)
    if another == "copy":  # in the place of one that was removed: it may get the very inode
        shutil.rmtree(tmp_path / "r")
        shutil.copytree(tmp_path / "other", tmp_path / "r")
    else:
        (tmp_path / "r").rename(tmp_path / "away")
    if another == "folder":
        (tmp_path / "other").rename(tmp_path / "r")
    elif another == "link":
        (tmp_path / "r").symlink_to(tmp_path / "other")
    before = {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()}
    why = "has another owner by now" if another == "link" else "was moved away, or is another by now"
    with pytest.raises(CourseError, match=f"{why}; this run ends"):
        list(training)
    assert {file: file.read_bytes() for file in (tmp_path / "r").rglob("*") if file.is_file()} == before


def test_what_becomes_a_pipe_while_the_run_goes_on_is_not_waited_for(tiny_data, tmp_path):
    training = run.train(make_task(SMALL, tiny_data), SMALL, folder := tmp_path / "r", progress=False)
    next(training)
    (folder / "progress.jsonl").unlink()
    os.mkfifo(folder / "progress.jsonl")
    with pytest.raises(CourseError, match=r"progress\.jsonl is a pipe"):
        list(training)


def test_a_run_that_is_to_be_overwritten_is_back_where_no_folder_can_be_made(
    finished, tiny_data, tmp_path, monkeypatch
):
    """As where a quota counts files."""
    shutil.copytree(finished[0], folder := tmp_path / "r")
    before, mkdir = files(folder), Path.mkdir

    def full(self, *args, **kwargs):
        if self == folder:
            raise OSError(errno.ENOSPC, "No space left on device")
        return mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(CourseError, match=r"cannot make .*r: No space left on device; make room"):
        train(tiny_data, folder, overwrite=True)
    assert files(folder) == before
    assert [file.name for file in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "wandb", "progress.jsonl", "status.json"])
def test_what_becomes_a_link_while_the_run_goes_on_is_not_written_through(tiny_data, finished, tmp_path, name):
    shutil.copytree(finished[0], other := tmp_path / "other")
    (other / "checkpoints").mkdir()
    for step in (2, 4, 6):
        (other / "checkpoints" / f"step-{step:08d}-0123456789abcdef.pt").touch()
    before = {file: file.read_bytes() for file in other.rglob("*") if file.is_file()}
    recipe = dataclasses.replace(SMALL, checkpoint_every=7, track=())
    training = run.train(make_task(recipe, tiny_data), recipe, folder := tmp_path / "r", progress=False)
    assert [next(training).step for _ in range(2)] == [5, 10]
    if (folder / name).exists():
        (folder / name).rename(tmp_path / "away")
    (folder / name).symlink_to(other / name)
    with pytest.raises(CourseError, match=rf"r/{name} is a link, and what lies behind it may be another run's"):
        list(training)
    assert {file: file.read_bytes() for file in other.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("when", ["packed", "written", "named"])
@pytest.mark.parametrize("how", ["moved away", "link"])
def test_a_checkpoint_goes_nowhere_else_when_its_folder_changes_meanwhile(tiny_data, tmp_path, monkeypatch, how, when):
    recipe = dataclasses.replace(SMALL, checkpoint_every=3, track=(), steps=12, warmup_steps=1)
    training = run.train(make_task(recipe, tiny_data), recipe, folder := tmp_path / "r", progress=False)
    assert next(training).step == 5
    (other := tmp_path / "other" / "checkpoints").mkdir(parents=True)
    for step in (1, 2, 3):
        (other / f"step-{step:08d}-0123456789abcdef.pt").touch()
    place, name = {"packed": (torch, "save"), "written": (Path, "write_bytes"), "named": (Path, "replace")}[when]
    act = getattr(place, name)

    def change(*args, **options):
        done = act(*args, **options)
        if "checkpoints" in str(args[0]) or when == "packed":
            monkeypatch.setattr(place, name, act)
            (folder if how == "moved away" else folder / "checkpoints").rename(tmp_path / "away")
            if how == "link":
                (folder / "checkpoints").symlink_to(other)
        return done

    monkeypatch.setattr(place, name, change)
    with pytest.raises(
        CourseError, match="was moved away, or is another by now" if how == "moved away" else "is a link"
    ):
        list(training)
    assert len(list(other.iterdir())) == 3
    assert folder.exists() == (how == "link")


def test_a_run_whose_lock_cannot_be_removed_is_finished_all_the_same(
    finished, tiny_data, tmp_path, monkeypatch, capsys
):
    """Nor what it has overwritten, as in a folder that is read-only by then."""
    shutil.copytree(finished[0], folder := tmp_path / "r")
    training = run.train(make_task(SMALL, tiny_data), SMALL, folder, progress=False, overwrite=True)
    next(training)

    def refused(file, *_, act, **__):
        if file.parent == tmp_path:
            raise PermissionError(13, "Permission denied", str(file))
        return act(file, *_, **__)

    for name in ("unlink", "rename"):
        monkeypatch.setattr(Path, name, functools.partialmethod(refused, act=getattr(Path, name)))
    list(training)
    assert run_folder.run_status(folder) == "finished"
    assert f"is kept, in {tmp_path / '.r.overwritten'}" in capsys.readouterr().err
    monkeypatch.undo()
    assert train(tiny_data, folder, resume=True) == []


@pytest.mark.parametrize("how", [{}, {"overwrite": True}, {"resume": True}])
def test_a_name_that_is_a_link_to_itself_is_one_line(tiny_data, tmp_path, monkeypatch, capsys, how):
    (tmp_path / "r").symlink_to("r")
    with pytest.raises(
        CourseError, match=r"r is a link that leads to itself|Too many levels of symbolic links"
    ) as error:
        train(tiny_data, tmp_path / "r", **how)
    assert "\n" not in str(error.value)
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    assert cli.main(["train", "--data", str(tiny_data), "--name", "r", *(f"--{word}" for word in how)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "r is a link that leads to itself, not a training run" in line
    assert [entry.name for entry in tmp_path.iterdir()] == ["r"]


def test_a_link_to_a_folder_elsewhere_is_overwritten_there(tiny_data, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "r").symlink_to(tmp_path / "far" / "x")
    train(tiny_data, tmp_path / "r")
    train(tiny_data, tmp_path / "r", dataclasses.replace(SMALL, seed=5), overwrite=True)
    assert Recipe.load(tmp_path / "far" / "x" / "recipe.json").seed == 5
    assert [entry.name for entry in (tmp_path / "far").iterdir()] == ["x"]


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


def test_scores_do_not_depend_on_the_batch_size(tiny_data):
    pairs = Pairs(store.open_split(tiny_data, "valid"))
    one, many = (evaluate(Add(0.3), pairs, batch_size=size) for size in (1, 9))
    assert one == pytest.approx(many, rel=1e-5)


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


def test_a_folder_whose_name_is_no_text_is_one_line(tiny_data, tmp_path):
    """TensorBoard writes into no such one."""
    place = tmp_path / os.fsdecode(b"q\xff")
    with pytest.raises(CourseError, match="TensorBoard cannot write to"):
        train(tiny_data, place / "r", dataclasses.replace(SMALL, track=("tensorboard",)))
