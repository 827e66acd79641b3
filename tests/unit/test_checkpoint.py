"""A run that was stopped and resumed is the run that was never stopped; a file that is not whole is never resumed."""

import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import zipfile
from pathlib import Path

import events
import h5py
import numpy as np
import pytest
import torch
from same_run import assert_same_run, records
from torch import nn

from dltutorial import cli
from dltutorial.config import LOADERS, PRESETS, Recipe
from dltutorial.data import sampling, store, weather
from dltutorial.errors import CheckpointError, CourseError, Interrupted
from dltutorial.train import checkpoint, forecasting, loop, run, run_folder
from dltutorial.train.forecasting import make_task
from dltutorial.train.loop import TrainState
from dltutorial.train.task import Task

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


@pytest.mark.parametrize("step", [1, 3, 5, 8, 13, 19])
def test_a_resumed_run_is_to_the_bit_the_one_never_stopped(whole, tiny_data, tmp_path, step):
    stop_after(tiny_data, tmp_path / "r", step)
    assert run_folder.run_status(tmp_path / "r") == "interrupted"
    train(tiny_data, tmp_path / "r", resume=True)
    assert_same_run(whole, tmp_path / "r")


def test_a_folder_with_an_older_checkpoints_name_is_passed_over(whole, tiny_data, stopped):
    own = stopped / "checkpoints" / "step-00000001-0123456789abcdef.pt"
    own.mkdir()
    train(tiny_data, stopped, resume=True)
    assert_same_run(whole, stopped)
    assert own.is_dir()


def test_a_survey_whose_loss_depends_on_them_keeps_its_parts_of_a_batch():
    was = dataclasses.replace(SMALL, task="survey", accumulate=2)
    with pytest.raises(CheckpointError, match=r"was trained with accumulate=1 \(now 2\)"):
        run_folder.check_same(vars(SMALL) | {"task": "survey"}, was, Path("r"))
    run_folder.check_same(vars(was), was, Path("r"))
    run_folder.check_same(vars(SMALL), dataclasses.replace(SMALL, accumulate=2), Path("r"))


def test_a_finished_survey_in_parts_is_known_as_finished(tmp_path):
    recipe = dataclasses.replace(SMALL, task="survey", accumulate=2)
    recipe.save(tmp_path / "recipe.json")
    with zipfile.ZipFile(tmp_path / "weights.pt", "w") as weights:
        weights.writestr("w", b"")
    now = run_folder._about(recipe, "data")
    earlier = {**now, "recipe": {name: value for name, value in now["recipe"].items() if name != "accumulate"}}
    for about in (now, earlier):
        (tmp_path / "status.json").write_text(json.dumps({"status": "finished", **about, "scores": {}}))
        assert run_folder.is_finished(tmp_path, recipe, "data")


def test_a_long_knob_is_told_shortened():
    with pytest.raises(CheckpointError) as error:
        run_folder.check_same({**vars(SMALL), "loader": "x" * 600_000}, SMALL, Path("r"))
    assert len(str(error.value)) < 300


def test_also_when_it_is_stopped_after_every_update(whole, tiny_data, tmp_path):
    for step in range(1, 20):
        stop_after(tiny_data, tmp_path / "r", step, resume=True)
    train(tiny_data, tmp_path / "r", resume=True)
    assert_same_run(whole, tmp_path / "r")


@pytest.mark.parametrize("loader", LOADERS[1:])
def test_every_loader_goes_on_in_the_middle_of_an_epoch(tiny_data, tmp_path, loader):
    recipe = dataclasses.replace(SMALL, loader=loader, roll=True)
    train(tiny_data, tmp_path / "whole", recipe)
    stop_after(tiny_data, tmp_path / "r", 5, recipe)
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "r")


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("lars", 0.1), ("larc", 0.1), ("lamb", 0.05)])
def test_every_optimizer_goes_on_with_what_it_remembers(tiny_data, tmp_path, optimizer, rate):
    recipe = dataclasses.replace(SMALL, optimizer=optimizer, learning_rate=rate)
    train(tiny_data, tmp_path / "whole", recipe)
    stop_after(tiny_data, tmp_path / "r", 7, recipe)
    train(tiny_data, tmp_path / "r", recipe, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "r")


def test_a_run_from_before_a_knob_existed_goes_on_with_its_default(stopped):
    before = {name: value for name, value in vars(SMALL).items() if name != "optimizer"}
    run_folder.check_same(before, SMALL, stopped)
    with pytest.raises(CheckpointError, match="optimizer='adamw' \\(now 'lamb'\\)"):
        run_folder.check_same(before, dataclasses.replace(SMALL, optimizer="lamb"), stopped)


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
        lines.write("[" * 200_000 + '\n{"step": 15, "lo')  # killed while writing
    assert steps(folder) == [9, 6]
    seen = train(tiny_data, folder, resume=True)
    assert [record.step for record in seen] == [10, 15, 16, 20]
    assert_same_run(whole, folder)


def test_records_that_are_older_than_the_checkpoint_are_told(tiny_data, stopped, capsys):
    (stopped / "progress.jsonl").write_text("")  # as a backup that was copied over it
    train(tiny_data, stopped, resume=True)
    assert "goes on after 7 of 20 updates, but its records end with update 0" in capsys.readouterr().err


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


def test_the_learning_rate_stays_the_tensor_that_a_graph_reads(tmp_path, monkeypatch):
    recipe = dataclasses.replace(SMALL, cuda_graph=True)
    monkeypatch.setattr(loop, "make_step", lambda *_: None)  # there is no GPU to make it on

    def start():
        torch.manual_seed(0)
        state = TrainState(Task(nn.Linear(3, 3), None, None), recipe)
        return state, state.optimizer

    state, optimizer = start()
    for parameter in state.model.parameters():
        averages = {name: torch.rand_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(4.0)} | averages
    optimizer.param_groups[0]["lr"].fill_(0.25)
    saved = checkpoint.save(checkpoint.take(state, recipe), tmp_path)
    other, again = start()
    rates = [group["lr"] for group in again.param_groups]
    checkpoint.restore(checkpoint.load(saved), other)
    assert [group["lr"] is rate for group, rate in zip(again.param_groups, rates, strict=True)] == [True, True]
    assert [group["lr"].item() for group in again.param_groups] == [0.25, 0.25]
    assert all(state["step"].item() == 4 for state in again.state.values())
    torch.testing.assert_close(
        [state["exp_avg"] for state in again.state.values()], [state["exp_avg"] for state in optimizer.state.values()]
    )


@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 3), (2, 1)])
def test_on_other_ranks_the_global_batches_go_on_in_the_same_order(before, after):
    def taken(world_size, skip, n):
        ranks = [
            itertools.islice(sampling.endless(30, 8, seed=2, rank=r, world_size=world_size, skip=skip), n)
            for r in range(world_size)
        ]
        return [sorted(itertools.chain(*(indices for indices, _ in parts))) for parts in zip(*ranks, strict=True)]

    assert taken(before, 0, 5) + taken(after, 5, 6) == taken(1, 0, 11)


def test_the_position_is_counted_in_global_batches(stopped):
    assert checkpoint.newest(stopped / "checkpoints").global_batches == 7


# What is there after a stop


def test_the_last_two_are_kept(whole):
    assert steps(whole) == [18, 15]


def test_without_the_knob_only_a_signal_writes_one(tiny_data, tmp_path):
    recipe = dataclasses.replace(SMALL, checkpoint_every=0)
    train(tiny_data, tmp_path / "a", recipe)
    assert not (tmp_path / "a" / "checkpoints").exists()
    stop_after(tiny_data, tmp_path / "b", 4, recipe)
    assert steps(tmp_path / "b") == [4]


def test_asked_to_end_at_the_last_update_is_finished(tiny_data, tmp_path, monkeypatch):
    judged = []
    monkeypatch.setattr(
        forecasting,
        "evaluate",
        lambda *both, judge=forecasting.evaluate, **how: judged.append(1) or judge(*both, **how),
    )
    seen = train(tiny_data, tmp_path / "r", asked_to_end=lambda: len(judged) == 3)
    assert seen[-1].step == 20
    assert len(judged) == 3
    assert run_folder.run_status(tmp_path / "r") == "finished"


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


def test_a_run_that_diverged_is_not_kept(tiny_data, tmp_path):
    wild = dataclasses.replace(SMALL, learning_rate=1e18, clip_norm=0.0, warmup_steps=0, log_every=20, eval_every=0)
    with pytest.raises(CourseError, match="lower learning_rate"):
        train(tiny_data, tmp_path / "r", wild)
    assert all(
        torch.isfinite(value).all()
        for file in checkpoint.named(tmp_path / "r" / "checkpoints")
        for value in checkpoint.load(file).losses_N
    )


# Files that are not whole, or not ours


def cut(content):
    return content[: len(content) // 2]


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, flipped, lambda _: b"", lambda content: content + b"\0"])
def test_a_damaged_newest_file_is_passed_over_with_a_line(whole, tiny_data, stopped, capsys, damage):
    newest, _ = checkpoint.named(stopped / "checkpoints")
    newest.write_bytes(damage(newest.read_bytes()))
    train(tiny_data, stopped, resume=True)
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "passed over" in line and newest.name in line and "cut or changed" in line]
    assert any("goes on after 6 of 20" in line for line in said)
    assert_same_run(whole, stopped)
    assert (stopped / "checkpoints" / f"{newest.name}.damaged").exists()


def test_if_all_are_damaged_the_run_starts_anew_and_says_so(whole, tiny_data, stopped, capsys):
    for file in checkpoint.named(stopped / "checkpoints"):
        file.write_bytes(b"")
    train(tiny_data, stopped, resume=True)
    assert "no checkpoint to resume from; it starts anew" in capsys.readouterr().err
    assert_same_run(whole, stopped)
    assert len(list((stopped / "checkpoints").glob("*.damaged"))) == 2


def test_a_file_of_another_name_is_told_of_and_never_removed(whole, tiny_data, stopped, capsys):
    for file in checkpoint.named(stopped / "checkpoints"):
        file.unlink()
    torch.save({"weights": torch.ones(3)}, stopped / "checkpoints" / "model_best.pt")
    train(tiny_data, stopped, resume=True)
    assert "model_best.pt has not the name of a checkpoint" in capsys.readouterr().err
    assert (stopped / "checkpoints" / "model_best.pt").exists()
    assert_same_run(whole, stopped)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"weights": 1}, "KeyError"),
        ({"format": 99}, "another format"),
        ({"format": 2}, "TypeError"),
        ({"format": 1}, "another format"),
        (os, "more than tensors and plain values"),
    ],
)
def test_a_whole_file_that_is_not_ours_is_refused_and_stays(tiny_data, stopped, tmp_path, content, why):
    raw = tmp_path / "raw.pt"
    torch.save(content if content is not os else nn.Linear(2, 2), raw)
    strange = stopped / "checkpoints" / f"step-00000012-{checkpoint._digest(raw.read_bytes())}.pt"
    raw.rename(strange)
    with pytest.raises(CheckpointError, match=f"no checkpoint of this version of the course.*{why}") as error:
        train(tiny_data, stopped, resume=True)
    assert "\n" not in str(error.value)
    assert "weights_only" not in str(error.value)
    assert strange.exists()
    assert steps(stopped) == [12, 7, 6]


def everything(folder):
    """Every name below a folder, and every content that can be read."""
    return {entry: entry.read_bytes() if entry.is_file() and not entry.is_symlink() else None
            for entry in folder.rglob("*")}  # fmt: skip


def a_folder(file):
    file.unlink()
    file.mkdir()


def a_pipe(file):
    file.unlink()
    os.mkfifo(file)


def a_loop(file):
    file.unlink()
    file.symlink_to(file.name)


def moved_away(file):
    file.unlink()
    file.symlink_to("/nowhere")


def a_broken_disk(file):
    file.unlink()
    file.symlink_to("/proc/self/mem")  # its first page: EIO


@pytest.mark.parametrize("broken", [a_folder, a_loop, moved_away, a_broken_disk])
def test_a_newest_file_that_cannot_be_read_stops_the_resumed_run_and_nothing_changes(tiny_data, stopped, broken):
    newest, _ = checkpoint.named(stopped / "checkpoints")
    broken(newest)
    before = everything(stopped)
    with pytest.raises(CheckpointError, match=r"cannot read .*checkpoints.*: .*; nothing was changed") as error:
        train(tiny_data, stopped, resume=True)
    assert "\n" not in str(error.value)
    assert everything(stopped) == before


def test_checkpoints_that_cannot_be_listed_stop_the_resumed_run_and_nothing_changes(tiny_data, stopped):
    (stopped / "checkpoints").rename(stopped / "elsewhere")
    (stopped / "checkpoints").symlink_to("checkpoints")
    before = everything(stopped)
    with pytest.raises(CourseError, match=r"checkpoints is a link"):
        train(tiny_data, stopped, resume=True)
    assert everything(stopped) == before


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda file: file.symlink_to("/dev/zero")])
@pytest.mark.parametrize(
    "name",
    ["status.json", "recipe.json", "progress.jsonl", "weights.pt", "checkpoints/step-00000099-0123456789abcdef.pt"],
)
def test_a_pipe_or_a_folder_in_the_place_of_a_file_stops_the_resumed_run_and_nothing_changes(
    tiny_data, stopped, name, make
):
    (stopped / name).unlink(missing_ok=True)
    make(stopped / name)
    before = everything(stopped)
    with pytest.raises(
        CourseError, match=rf"{name}(: Is a directory|: a pipe or device| is a link| is a pipe)"
    ) as error:
        train(tiny_data, stopped, resume=True)
    assert "\n" not in str(error.value)
    assert everything(stopped) == before


def test_a_damaged_file_is_kept_and_never_gone_on_from_should_it_be_right_again(whole, tiny_data, stopped, capsys):
    newest, _ = checkpoint.named(stopped / "checkpoints")
    right = newest.read_bytes()
    newest.write_bytes(flipped(right))
    training = run.train(make_task(SMALL, tiny_data), SMALL, stopped, progress=False, resume=True)
    assert next(training).step == 8
    training.close()
    kept = stopped / "checkpoints" / f"{newest.name}.damaged"
    assert kept.read_bytes() == flipped(right)
    kept.write_bytes(right)
    capsys.readouterr()
    train(tiny_data, stopped, resume=True)
    said = capsys.readouterr().err
    assert "goes on after 6 of 20" in said
    assert ".damaged" not in said
    assert_same_run(whole, stopped)
    assert kept.read_bytes() == right


def of_adamw(key, value):
    """Change what AdamW remembers of one layer."""

    def change(content):
        content["optimizer"]["state"][0] |= {key: value} if value is not None else {}
        if value is None:
            del content["optimizer"]["state"][0][key]

    return change


def layers_of(content):
    return content["optimizer"]["state"].values()


WRONG = {
    "a field that is missing": lambda content: content.pop("losses_N"),
    "a field too many": lambda content: content.update(more=1),
    "a step of another type": lambda content: content.update(step="twelve"),
    "another step than the name's": lambda content: content.update(step=10**6),
    "no list of random states": lambda content: content.update(random=3),
    "random states without names": lambda content: content.update(random=[1, 2]),
    "no random state of torch's": lambda content: content["random"][0].pop("torch"),
    "a short random state": lambda content: content["random"][0].update(torch=torch.zeros(3, dtype=torch.uint8)),
    "a random state of floats": lambda content: content["random"][0].update(torch=torch.zeros(5056)),
    "half of NumPy's random state": lambda content: content["random"][0].update(numpy=["MT19937"]),
    "words of NumPy's in another shape": lambda content: content["random"][0]["numpy"].__setitem__(1, torch.ones(2, 2)),
    "a random state that is not Python's": lambda content: content["random"][0].update(python=(3, (1, 2), None)),
    "losses that are no tensor": lambda content: content.update(losses_N=[1.0]),
    "losses in a square": lambda content: content.update(losses_N=torch.ones(2, 2)),
    "losses that are whole numbers": lambda content: content.update(losses_N=torch.ones(2, dtype=torch.int64)),
    "scores that are no numbers": lambda content: content.update(scores={"valid/rmse": "good"}),
    "scores without names": lambda content: content.update(scores=[1.0]),
    "a recipe that is none": lambda content: content.update(recipe=None),
    "a recipe of tensors": lambda content: content["recipe"].update(dim=torch.ones(2)),
    "no weights": lambda content: content.update(model={}),
    "weights that are no tensors": lambda content: content["model"].update(dict.fromkeys(content["model"], 1.0)),
    "weights that are whole numbers": lambda content: [
        content["model"].update({name: w.long()}) for name, w in list(content["model"].items())
    ],
    "weights in another shape": lambda content: content["model"].update(dict.fromkeys(content["model"], torch.ones(1))),
    "an optimizer without state": lambda content: content["optimizer"].pop("state"),
    "an optimizer's state that is a list": lambda content: content["optimizer"].update(state=[1]),
    "an average in another shape": of_adamw("exp_avg", torch.ones(3)),
    "an average that is a word": of_adamw("exp_avg", "much"),
    "no second average": of_adamw("exp_avg_sq", None),
    "no second average of any layer": lambda content: [w.pop("exp_avg_sq") for w in layers_of(content)],
    "one number too many of every layer": lambda content: [w.update(more=torch.ones(())) for w in layers_of(content)],
    "nothing of any layer": lambda content: [w.clear() for w in layers_of(content)],
    "no layer": lambda content: content["optimizer"]["state"].clear(),
    "an average that is one number": of_adamw("exp_avg", torch.ones(())),
    "a sparse average": of_adamw("exp_avg", torch.ones(5, 5).to_sparse()),
    "averages that are one number in memory": lambda content: [
        w.update(exp_avg=torch.ones(1).expand(w["exp_avg"].shape)) for w in layers_of(content)
    ],
    "weights that are NaN": lambda content: next(iter(content["model"].values())).fill_(torch.nan),
    "an average that is inf": lambda content: [w["exp_avg"].fill_(torch.inf) for w in layers_of(content)],
    "losses of more updates than there were": lambda content: content.update(losses_N=torch.ones(1000)),
    "losses of a million million updates": lambda content: content.update(losses_N=torch.ones(1).expand(10**12)),
    "losses that are nowhere": lambda content: content.update(losses_N=torch.ones(2, device="meta")),
    "a scaler in a run without": lambda content: content.update(scaler={"scale": 1.0}),
    "a scaler that is a word": lambda content: content.update(scaler="none"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_wrong_fields_in_a_file_with_a_right_digest_are_one_line_and_nothing_changes(tiny_data, stopped, change):
    newest, _ = checkpoint.named(stopped / "checkpoints")
    content = torch.load(newest, weights_only=True)
    change(content)
    torch.save(content, newest)
    newest.rename(newest.with_name(f"step-00000007-{checkpoint._digest(newest.read_bytes())}.pt"))
    before = everything(stopped)
    with pytest.raises(CheckpointError) as error:
        train(tiny_data, stopped, resume=True)
    assert "\n" not in str(error.value)
    assert everything(stopped) == before


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_the_weights_of_a_run_that_has_diverged_are_called_so(stopped, number):
    newest, _ = checkpoint.named(stopped / "checkpoints")
    content = torch.load(newest, weights_only=True)
    next(iter(content["model"].values())).view(-1)[0] = number
    torch.save(content, newest)
    newest = newest.rename(newest.with_name(f"step-00000007-{checkpoint._digest(newest.read_bytes())}.pt"))
    with pytest.raises(CheckpointError, match=f"^{newest} holds NaN, infinities or .*: it may have diverged;") as told:
        checkpoint.newest(stopped / "checkpoints")
    assert "version" not in str(told.value)


@pytest.mark.parametrize("wrong", [{"scale": "much"}, {"scale": 1.0}, {"scale": torch.ones(2)}])
def test_a_wrong_scaler_is_one_line(tiny_data, tmp_path, wrong):
    recipe = dataclasses.replace(SMALL, precision="fp16")
    stop_after(tiny_data, tmp_path / "r", 2, recipe)
    found = checkpoint.newest(tmp_path / "r" / "checkpoints")
    checkpoint.save(dataclasses.replace(found, scaler=wrong), tmp_path / "r" / "checkpoints")
    with pytest.raises(CheckpointError):
        train(tiny_data, tmp_path / "r", recipe, resume=True)


def test_the_weights_of_another_model_are_refused_in_one_line(stopped):
    other = TrainState(Task(nn.Linear(2, 2), None, None), SMALL)
    with pytest.raises(CheckpointError, match="of another model") as error:
        checkpoint.restore(checkpoint.newest(stopped / "checkpoints"), other)
    assert "\n" not in str(error.value)


# What is refused


@pytest.mark.parametrize(
    "change", [{"learning_rate": 1e-4}, {"steps": 30}, {"seed": 1, "dim": 32}, {"global_batch_size": 4}]
)
def test_another_recipe_is_refused_naming_the_knobs(tiny_data, stopped, change):
    before = sorted(stopped.rglob("*")), (stopped / "progress.jsonl").read_text()
    with pytest.raises(CheckpointError, match="resume with the same") as error:
        train(tiny_data, stopped, dataclasses.replace(SMALL, **change), resume=True)
    for name, value in change.items():
        assert f"{name}={getattr(SMALL, name)!r} (now {value!r})" in str(error.value)
    assert "\n" not in str(error.value)
    assert (sorted(stopped.rglob("*")), (stopped / "progress.jsonl").read_text()) == before


def test_every_knob_is_either_free_or_refused():
    assert set(vars(SMALL)) >= run_folder.FREE_KNOBS
    assert {"seed", "steps", "loader", "precision", "roll"}.isdisjoint(run_folder.FREE_KNOBS)


def test_other_data_are_refused(own_data, stopped):
    stds = np.load(own_data / "stats" / "global_stds.npy")
    np.save(own_data / "stats" / "global_stds.npy", 2 * stds)
    with pytest.raises(CheckpointError, match="trained on other data"):
        train(own_data, stopped, resume=True)


def test_other_data_are_refused_of_a_finished_run_too(whole, own_data, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "r")
    shutil.rmtree(folder / "checkpoints")
    assert train(own_data, folder, resume=True) == []
    stds = np.load(own_data / "stats" / "global_stds.npy")
    np.save(own_data / "stats" / "global_stds.npy", 2 * stds)
    with pytest.raises(CheckpointError, match="trained on other data; give the same --data, or choose another"):
        train(own_data, folder, resume=True)
    said = json.loads((folder / "status.json").read_text())
    del said["data"]  # as an earlier version wrote it
    (folder / "status.json").write_text(json.dumps(said))
    assert train(own_data, folder, resume=True) == []


def test_a_folder_that_is_no_run_is_refused_and_left_alone(tiny_data, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CourseError, match="not a training run"):
        train(tiny_data, tmp_path, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(CourseError, match="is a file"):
        train(tiny_data, tmp_path / "file", resume=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "thesis.tex"]


# A disk that is full


def test_a_full_disk_is_one_line_and_keeps_the_checkpoint_before(whole, tiny_data, stopped):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = checkpoint.named(stopped / "checkpoints")[0].stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot write .*step-00000009.*: .*; (make room|raise this shell)"
        ) as error:
            train(tiny_data, stopped, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "\n" not in str(error.value)
    assert run_folder.run_status(stopped) == "failed"
    assert steps(stopped) == [7, 6]
    assert not list(stopped.rglob("*.partial"))
    train(tiny_data, stopped, resume=True)
    assert_same_run(whole, stopped)


@pytest.mark.parametrize(("most_bytes", "expected"), [(26, "failed"), (10, "killed")])
def test_a_disk_without_any_room_leaves_no_run_that_seems_to_go_on(tiny_data, tmp_path, most_bytes, expected):
    training = run.train(make_task(SMALL, tiny_data), SMALL, tmp_path / "r", progress=False)
    next(training)
    assert run_folder.run_status(tmp_path / "r") == "running"
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        with pytest.raises(CourseError, match=r"cannot write .*; make room") as error:
            list(training)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "\n" not in str(error.value)
    assert run_folder.run_status(tmp_path / "r") == expected


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


def recorded(folder):
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [(line["what"], line["value"]) for line in lines if line.get("run") == "r"]


def test_what_a_killed_run_has_not_recorded_is_recorded_by_who_resumes_it(tiny_data, tmp_path):
    """Also where an older run of that name, which it has replaced, was."""
    runs = tmp_path / "runs"
    assert call(tiny_data, "--name", "r", "--seed", "3") == 0
    older = recorded(runs)
    kept = (runs / "records.jsonl").read_text()
    assert call(tiny_data, "--name", "r", "--overwrite") == 0
    both = recorded(runs)
    assert both[: len(older)] == older
    assert len(both) == 2 * len(older) > 0
    (runs / "records.jsonl").write_text(kept)  # as if it had been killed before
    for _ in range(2):
        assert call(tiny_data, "--name", "r", "--resume") == 0
        assert recorded(runs) == both


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo])
def test_records_that_cannot_be_a_file_are_told_before_the_training(tiny_data, tmp_path, capsys, put):
    (tmp_path / "runs").mkdir()
    put(tmp_path / "runs" / "records.jsonl")
    assert call(tiny_data, "--name", "r") == 2
    told = "records.jsonl is a folder, a pipe or a device; let DLTUTORIAL_RECORDS name a new file"
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs" / "r").exists()


@pytest.mark.parametrize("who", ["TORCHELASTIC", "SLURM"])
def test_a_start_anew_overwrites_nothing_that_the_first_has_made(tiny_data, tmp_path, capsys, monkeypatch, who):
    """The launcher says the same words again when a rank or a node has failed."""
    monkeypatch.setenv(f"{who}_RESTART_COUNT", "0")
    assert call(tiny_data, "--name", "r", "--overwrite") == 0
    made = {file: file.read_bytes() for file in (tmp_path / "runs" / "r").rglob("*") if file.is_file()}
    monkeypatch.setenv(f"{who}_RESTART_COUNT", "1")
    capsys.readouterr()
    assert call(tiny_data, "--name", "r", "--overwrite") == 2
    assert "--overwrite would take what the start before has made; give --resume" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in (tmp_path / "runs" / "r").rglob("*") if file.is_file()} == made
    assert call(tiny_data, "--name", "r", "--resume") == 0


def test_a_persons_own_file_in_the_place_of_the_records_is_told_before_the_training(tiny_data, tmp_path, capsys):
    file = tmp_path / "runs" / "records.jsonl"
    file.parent.mkdir()
    file.write_text('{"id": 1}\n')
    assert call(tiny_data, "--name", "r") == 2
    assert "records.jsonl holds something else than records; let DLTUTORIAL_RECORDS" in capsys.readouterr().err
    assert [path.name for path in file.parent.iterdir()] == ["records.jsonl"]
    assert file.read_text() == '{"id": 1}\n'


def test_records_that_cannot_be_read_are_not_written_a_second_time(tiny_data, tmp_path, capsys):
    assert call(tiny_data, "--name", "r") == 0
    file = tmp_path / "runs" / "records.jsonl"
    file.write_text(before := "{}\n" + file.read_text())
    for _ in range(2):
        assert call(tiny_data, "--name", "r", "--resume") == 0
        assert "no score is recorded: " in capsys.readouterr().out
        assert file.read_text() == before


@pytest.mark.parametrize("part", ["recipe", "scores"])
def test_a_status_whose_parts_are_no_objects_is_damaged(tiny_data, tmp_path, part):
    assert call(tiny_data, "--name", "r") == 0
    status = tmp_path / "runs" / "r" / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {part: "many"}))
    assert run_folder.run_status(tmp_path / "runs" / "r") == "damaged"
    assert call(tiny_data, "--name", "r", "--resume") == 0
    assert run_folder.run_status(tmp_path / "runs" / "r") == "finished"


def test_a_run_is_resumed_by_its_name_alone(tiny_data, tmp_path):
    with at_update(3, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert call(tiny_data, "--name", "r") == Interrupted.exit_status == 75
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert run_folder.run_status(tmp_path / "runs" / "r") == "interrupted"
    assert cli.main(["train", "--data", str(tiny_data), "--name", "r", "--resume"]) == 0
    assert run_folder.run_status(tmp_path / "runs" / "r") == "finished"


def test_a_run_that_is_resumed_with_its_preset_keeps_its_knobs_that_are_free(tiny_data, tmp_path):
    argv = ["train", "--data", str(tiny_data), "--name", "r", "--steps", "4", "--preset", "smoke"]
    sizes = ["--dim", "16", "--depth", "1", "--heads", "2", "--global-batch-size", "6"]
    free = ["--workers", "1", "--log-every", "3", "--accumulate", "2", "--device", "cpu", "--track"]
    with at_update(3, lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert cli.main([*argv, *sizes, *free]) == 75
    assert cli.main([*argv, *sizes, "--resume", "--log-every", "2"]) == 0
    kept = Recipe.load(tmp_path / "runs" / "r" / "recipe.json")
    assert (kept.workers, kept.log_every, kept.accumulate, kept.device, kept.track) == (1, 2, 2, "cpu", ())


def test_a_run_that_was_edited_after_its_end_is_not_told_longer_than_it_was(tiny_data, tmp_path, capsys):
    assert call(tiny_data, "--name", "r") == 0
    file = tmp_path / "runs" / "r" / "recipe.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"steps": 60}))
    capsys.readouterr()
    assert cli.main(["train", "--data", str(tiny_data), "--name", "r", "--resume"]) == 2
    said = capsys.readouterr()
    assert "was trained with steps=8 (now 60)" in said.err
    assert "finished already" not in said.out


def test_another_preset_is_refused_before_its_data_are_simulated(tiny_data, tmp_path, capsys, monkeypatch):
    assert call(tiny_data, "--name", "r") == 0
    capsys.readouterr()
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(weather, "ensure", lambda *_, **__: pytest.fail("simulated"))
    assert cli.main(["train", "--name", "r", "--resume", "--preset", "laptop"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was trained with" in line


@pytest.mark.parametrize(
    "lose",
    [Path.unlink, lambda file: os.truncate(file, 999), lambda file: file.write_bytes(flipped(file.read_bytes()))],
)
def test_a_finished_run_that_has_lost_its_weights_makes_them_again(tiny_data, tmp_path, capsys, lose):
    file = tmp_path / "runs" / "r" / "weights.pt"
    assert call(tiny_data, "--name", "r") == 0
    before = file.read_bytes()
    lose(file)
    capsys.readouterr()
    assert call(tiny_data, "--name", "r", "--resume") == 0
    said = capsys.readouterr()
    assert "r is finished, but its weights.pt is missing or damaged; it is made again" in said.err
    assert "goes on after 6 of 8 updates" in said.err
    assert "nothing was done" not in said.out
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("broken", "why"),
    [(a_loop, "Too many levels of symbolic links"), (a_folder, "Is a directory"), (a_pipe, "a pipe or device")],
)
def test_weights_of_a_finished_run_that_cannot_be_read_are_left_alone(tiny_data, tmp_path, capsys, broken, why):
    assert call(tiny_data, "--name", "r") == 0
    broken(tmp_path / "runs" / "r" / "weights.pt")
    capsys.readouterr()
    assert call(tiny_data, "--name", "r", "--resume") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"weights.pt: {why}" in line


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--resume"], "give its --name"),
        (["--name", "r", "--resume", "--seed", "4"], "seed=0 (now 4)"),
        (["--name", "r", "--resume", "--preset", "laptop"], "learning_rate=0.003 (now 0.001)"),
        (["--name", "../r", "--resume"], "bad name"),
        (["--name", "records.jsonl"], "is a file's name here"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(tiny_data, capsys, argv, said):
    assert call(tiny_data, "--name", "r") == 0
    capsys.readouterr()
    assert call(tiny_data, *argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_resume_and_overwrite_exclude_each_other(tiny_data, capsys):
    with pytest.raises(SystemExit):
        call(tiny_data, "--name", "r", "--resume", "--overwrite")
    assert "not allowed with" in capsys.readouterr().err


def test_data_have_a_fingerprint(tiny_data, own_data):
    one, other = (forecasting.fingerprint(store.open_split(data, "train")) for data in (tiny_data, own_data))
    assert one == other
    assert one != forecasting.fingerprint(store.open_split(tiny_data, "valid"))


def test_a_run_goes_on_with_the_validation_data_that_it_had(tiny_data, own_data, tmp_path):
    """Else its scores are of two sets."""
    before = forecasting.make_task(SMALL, own_data).data_id
    with h5py.File(store.year_files(own_data, "valid")[0], "r+") as file:
        file["fields"][3] *= 1.01
    assert forecasting.make_task(SMALL, own_data).data_id != before


@pytest.mark.parametrize("name", store.STATISTICS)
def test_a_run_goes_on_with_the_statistics_that_it_had(own_data, name):
    before = forecasting.make_task(SMALL, own_data).data_id
    file = own_data / "stats" / f"{name}.npy"
    np.save(file, np.load(file) * np.float32(1.001))
    assert forecasting.make_task(SMALL, own_data).data_id != before


@pytest.mark.parametrize("index", [0, 1, 5, 9])
def test_years_that_were_changed_in_place_are_other_data(own_data, index):
    before = forecasting.fingerprint(store.open_split(own_data, "train"))
    with h5py.File(store.year_files(own_data, "train")[0], "r+") as file:
        file["fields"][index] *= 1.01
    assert (other := forecasting.fingerprint(store.open_split(own_data, "train"))) != before
    (own_data / "dataset.json").write_text('{"geometry": "beta-plane"}')
    assert forecasting.fingerprint(store.open_split(own_data, "train")) != other
