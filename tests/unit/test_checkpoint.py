"""A run that was stopped and resumed is the run that was never stopped; a file that is not whole is never resumed."""

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import random
import resource
import signal

import events
import h5py
import numpy as np
import pytest
import torch
from same_run import assert_same_run, records
from torch import nn

from dltutorial import cli
from dltutorial.config import PRESETS
from dltutorial.data import sampling, store
from dltutorial.engine import checkpoint, forecasting, loop, run, run_folder
from dltutorial.engine.forecasting import make_task
from dltutorial.engine.recipe import LOADERS, Recipe
from dltutorial.errors import CheckpointError, Interrupted

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = dataclasses.replace(
    Recipe.of(PRESETS["smoke"], steps=20, eval_every=8),
    n_channels=3, n_lat=16, n_lon=24, dim=16, depth=1, heads=2, global_batch_size=6, log_every=5, checkpoint_every=3,
    device="cpu", track=(),
)  # fmt: skip


def train(data, folder, recipe=SMALL, **options):
    return list(run.train(make_task(recipe, data), recipe, folder, progress=False, **options))


def stop_after(data, folder, step, recipe=SMALL, **options):
    """Train until ``step`` updates are made, then be asked to end."""
    asked = []
    with at_update(step, lambda: asked.append(True)), pytest.raises(Interrupted, match=f"after {step} updates"):
        train(data, folder, recipe, asked_to_end=lambda: bool(asked), **options)


@contextlib.contextmanager
def at_update(step, act):
    """Inside, ``act()`` is called in that update."""

    def learning_rate(made, recipe, original=loop.learning_rate):
        if made + 1 == step:
            act()
        return original(made, recipe)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "learning_rate", learning_rate)
        yield


@pytest.fixture(scope="module")
def whole(tiny_data, tmp_path_factory, one_thread):
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(tiny_data, folder)
    return folder


@pytest.fixture
def stopped(tiny_data, tmp_path):
    """A run with checkpoints after 6 and 7 updates, which ended there."""
    stop_after(tiny_data, tmp_path / "r", 7)
    return tmp_path / "r"


def steps(folder):
    return [checkpoint.step_of(file) for file in checkpoint.named(folder / "checkpoints")]


# A resumed run is the run that was never stopped


@pytest.mark.parametrize("step", [1, 8, 13])
def test_a_resumed_run_is_to_the_bit_the_one_never_stopped(whole, tiny_data, tmp_path, step):
    stop_after(tiny_data, tmp_path / "r", step)
    assert run_folder.run_status(tmp_path / "r") == "interrupted"
    train(tiny_data, tmp_path / "r", resume=True)
    assert_same_run(whole, tmp_path / "r")


@pytest.mark.parametrize("loader", LOADERS[1:])
def test_every_loader_goes_on_in_the_middle_of_an_epoch(tiny_data, tmp_path, loader):
    recipe = dataclasses.replace(SMALL, loader=loader, roll=True)
    train(tiny_data, tmp_path / "whole", recipe)
    stop_after(tiny_data, tmp_path / "r", 5, recipe)
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "r")


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("larc", 0.1), ("lamb", 0.05)])
def test_every_optimizer_goes_on_with_what_it_remembers(tiny_data, tmp_path, optimizer, rate):
    recipe = dataclasses.replace(SMALL, optimizer=optimizer, learning_rate=rate)
    train(tiny_data, tmp_path / "whole", recipe)
    stop_after(tiny_data, tmp_path / "r", 7, recipe)
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "r")


def test_the_state_of_fp16_loss_scaling_goes_on(tiny_data, tmp_path):
    recipe = dataclasses.replace(SMALL, precision="fp16")
    train(tiny_data, tmp_path / "whole", recipe)
    stop_after(tiny_data, tmp_path / "r", 7, recipe)
    saved = checkpoint.newest(tmp_path / "r" / "checkpoints").scaler
    assert saved["scale"] > 0
    assert saved["_growth_tracker"] == 7 or saved["scale"] < 65536
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "r")


def test_records_after_the_checkpoint_are_cut_back(whole, tiny_data, tmp_path):
    folder = tmp_path / "r"
    training = run.train(make_task(SMALL, tiny_data), SMALL, folder, progress=False)
    assert [next(training).step for _ in range(3)] == [5, 8, 10]
    training.close()
    with open(folder / "progress.jsonl", "a") as lines:
        lines.write('{"step": 15, "lo')  # killed while writing
    assert steps(folder) == [9, 6]
    seen = train(tiny_data, folder, resume=True)
    assert [record.step for record in seen] == [10, 15, 16, 20]
    assert_same_run(whole, folder)


def test_knobs_that_decide_nothing_may_change(whole, tiny_data, stopped):
    other = dataclasses.replace(SMALL, log_every=4, checkpoint_every=0, eval_every=0, workers=1, preset="laptop")
    train(tiny_data, stopped, other, resume=True)
    for a, b in zip(*(torch.load(place / "weights.pt").values() for place in (whole, stopped)), strict=True):
        assert torch.equal(a, b)
    assert [line["step"] for line in records(stopped)] == [5, 8, 12, 16, 20]


def test_tensorboard_shows_every_step_once(tiny_data, tmp_path):
    recipe = dataclasses.replace(SMALL, track=("tensorboard",), log_every=1)
    training = run.train(make_task(recipe, tiny_data), recipe, tmp_path / "r", progress=False)
    assert [next(training).step for _ in range(8)][-1] == 8
    training.close()
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    logged = events.read(tmp_path / "r")["train/loss"]
    assert [step for step, _ in logged] == list(range(1, 21))


def test_random_states_come_back():
    states = checkpoint.random_states()
    drawn = torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()  # noqa: NPY002
    checkpoint.set_random_states(states)
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()) == drawn  # noqa: NPY002


@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 3)])
def test_on_other_ranks_the_global_batches_go_on_in_the_same_order(before, after):
    def taken(world_size, skip, n):
        ranks = [
            itertools.islice(sampling.endless(30, 8, seed=2, rank=r, world_size=world_size, skip=skip), n)
            for r in range(world_size)
        ]
        return [sorted(itertools.chain(*(indices for indices, _ in parts))) for parts in zip(*ranks, strict=True)]

    assert taken(before, 0, 5) + taken(after, 5, 6) == taken(1, 0, 11)


# What is there after a stop


def test_the_last_two_are_kept(whole):
    assert steps(whole) == [18, 15]


def test_without_the_knob_only_a_signal_writes_one(tiny_data, tmp_path):
    recipe = dataclasses.replace(SMALL, checkpoint_every=0)
    train(tiny_data, tmp_path / "a", recipe)
    assert not (tmp_path / "a" / "checkpoints").exists()
    stop_after(tiny_data, tmp_path / "b", 4, recipe)
    assert steps(tmp_path / "b") == [4]


def test_a_signal_that_reaches_loading_processes_too_ends_the_run_in_order(whole, tiny_data, tmp_path):
    recipe, asked = dataclasses.replace(SMALL, workers=1), []

    def warn_all():
        asked.append(True)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGTERM)
            os.kill(worker.pid, signal.SIGUSR1)

    with at_update(4, warn_all), pytest.raises(Interrupted, match="after 4 updates"):
        train(tiny_data, tmp_path / "r", recipe, asked_to_end=lambda: bool(asked))
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    assert_same_run(whole, tmp_path / "r")


# Files that are not whole


def test_a_half_written_newest_file_is_passed_over_with_a_line(whole, tiny_data, stopped, capsys):
    newest, _ = checkpoint.named(stopped / "checkpoints")
    content = newest.read_bytes()
    newest.write_bytes(content[: len(content) // 2])
    train(tiny_data, stopped, resume=True)
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "passed over" in line and newest.name in line and "cut or changed" in line]
    assert any("goes on after 6 of 20" in line for line in said)
    assert_same_run(whole, stopped)


def test_a_pickled_object_is_not_loaded(tiny_data, stopped, tmp_path):
    """Unpickling a file can run any code, so tensors and plain values alone are read."""
    pickled = tmp_path / "pickled.pt"
    torch.save(nn.Linear(2, 2), pickled)
    digest = checkpoint._digest(pickled.read_bytes())
    pickled.rename(stopped / "checkpoints" / f"step-00000012-{digest}.pt")
    with pytest.raises(CheckpointError, match="more than tensors and plain values"):
        train(tiny_data, stopped, resume=True)


# What is refused


@pytest.mark.parametrize("change", [{"steps": 30}, {"seed": 1, "dim": 32}])
def test_another_recipe_is_refused_naming_the_knobs(tiny_data, stopped, change):
    before = sorted(stopped.rglob("*")), (stopped / "progress.jsonl").read_text()
    with pytest.raises(CheckpointError, match="resume with the same") as error:
        train(tiny_data, stopped, dataclasses.replace(SMALL, **change), resume=True)
    for name, value in change.items():
        assert f"{name}={getattr(SMALL, name)!r} (now {value!r})" in str(error.value)
    assert "\n" not in str(error.value)
    assert (sorted(stopped.rglob("*")), (stopped / "progress.jsonl").read_text()) == before


def test_other_data_are_refused(own_data, stopped):
    stds = np.load(own_data / "stats" / "global_stds.npy")
    np.save(own_data / "stats" / "global_stds.npy", 2 * stds)
    with pytest.raises(CheckpointError, match="trained on other data"):
        train(own_data, stopped, resume=True)


# A disk that is full


def test_a_full_disk_is_one_line_and_keeps_the_checkpoint_before(whole, tiny_data, stopped):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = checkpoint.named(stopped / "checkpoints")[0].stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*step-00000009.*: .*; make room") as error:
            train(tiny_data, stopped, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "\n" not in str(error.value)
    assert run_folder.run_status(stopped) == "failed"
    assert steps(stopped) == [7, 6]
    assert not list(stopped.rglob("*.partial"))
    train(tiny_data, stopped, resume=True)
    assert_same_run(whole, stopped)


# The command line


def call(data, *argv):
    sizes = {"dim": 16, "depth": 1, "heads": 2, "global-batch-size": 6, "steps": 8, "checkpoint-every": 2}
    knobs = [str(word) for knob, value in sizes.items() for word in (f"--{knob}", value)]
    return cli.main(["train", "--data", str(data), "--device", "cpu", "--track", *argv, *knobs])


def test_a_finished_run_says_so_and_stays(tiny_data, tmp_path, capsys):
    assert call(tiny_data, "--name", "r", "--resume") == 0
    assert "it starts anew" in capsys.readouterr().err
    before = (tmp_path / "runs" / "r" / "weights.pt").stat().st_mtime_ns
    assert call(tiny_data, "--name", "r", "--resume") == 0
    assert "finished already, after 8 updates; nothing was done" in capsys.readouterr().out
    assert (tmp_path / "runs" / "r" / "weights.pt").stat().st_mtime_ns == before


def test_a_run_is_resumed_by_its_name_alone(tiny_data, tmp_path):
    with at_update(3, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert call(tiny_data, "--name", "r") == Interrupted.exit_status == 75
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert run_folder.run_status(tmp_path / "runs" / "r") == "interrupted"
    assert cli.main(["train", "--data", str(tiny_data), "--name", "r", "--resume"]) == 0
    assert run_folder.run_status(tmp_path / "runs" / "r") == "finished"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--resume"], "give its --name"),
        (["--name", "r", "--resume", "--seed", "4"], "seed=0 (now 4)"),
        (["--name", "../r", "--resume"], "bad name"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(tiny_data, capsys, argv, said):
    assert call(tiny_data, "--name", "r") == 0
    capsys.readouterr()
    assert call(tiny_data, *argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_years_that_were_changed_in_place_are_other_data(own_data):
    before = forecasting.fingerprint(store.open_split(own_data, "train"))
    with h5py.File(store.year_files(own_data, "train")[0], "r+") as file:
        file["fields"][5] *= 1.01
    assert forecasting.fingerprint(store.open_split(own_data, "train")) != before
