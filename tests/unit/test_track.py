"""The files of TensorBoard and of W&B hold what a training run logs, and nothing private."""

import getpass
import platform

import events
import pytest
from waiting import wait_for

from dltutorial.errors import CourseError
from dltutorial.record.track import Tracker

KEY = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that both trackers have logged."""
    folder = tmp_path_factory.mktemp("runs") / "tracked"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        tracker = Tracker(("tensorboard", "wandb"), folder, {"steps": 200})
        for step in range(1, 201):
            tracker.log(step, {"train/loss": 1 / step, "valid/rmse": float(step)})
        tracker.close()
    wait_for(lambda: b"valid/rmse" in wandb_bytes(folder))  # W&B's own process writes
    return folder


def wandb_bytes(folder):
    """The content of W&B's own file of an offline run. Its package has no reader."""
    return b"".join(file.read_bytes() for file in folder.glob("wandb/offline-run-*/*.wandb"))


def test_what_was_logged_is_read_back(run):
    scalars = events.read(run)
    assert set(scalars) == {"train/loss", "valid/rmse"}
    steps, values = zip(*scalars["train/loss"], strict=True)
    assert steps == tuple(range(1, 201))
    assert values == pytest.approx([1 / step for step in steps], rel=1e-6)


def test_wandb_records_neither_host_nor_user_nor_key(run):
    private = [platform.node(), f"/home/{getpass.getuser()}", str(run.parent), KEY]
    files = [file for file in run.glob("wandb/offline-run-*/**/*") if file.suffix in (".wandb", ".json", ".yaml")]
    assert files
    for file in files:
        content = file.read_bytes()
        assert [text for text in private if len(text) >= 4 and text.encode() in content] == [], file.name


def test_after_a_resume_tensorboard_shows_each_step_once(tmp_path):
    killed = Tracker(("tensorboard",), tmp_path, {})
    for step in range(6):
        killed.log(step, {"loss": 1.0})
    killed.close()
    resumed = Tracker(("tensorboard",), tmp_path, {}, first_step=4)
    for step in range(4, 8):
        resumed.log(step, {"loss": 2.0})
    resumed.close()
    assert events.read(tmp_path)["loss"] == [(step, 1.0 if step < 4 else 2.0) for step in range(8)]


def test_without_a_kind_nothing_is_written(tmp_path):
    tracker = Tracker((), tmp_path / "run", {})
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    assert not (tmp_path / "run").exists()


def test_an_unknown_mode_of_wandb_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    with pytest.raises(CourseError, match=r"^W&B cannot start in mode 'nonsense': .*unset WANDB_MODE"):
        Tracker(("wandb",), tmp_path, {})
