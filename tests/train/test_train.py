"""The trainer: what a run leaves, how it stops and continues, and what it says about wrong input."""

import itertools
import json
import os
import shutil
import signal

import pytest
import torch
from starting import STEPS
from torch import nn
from waiting import wait_for

from dltutorial import checkpoint, cli, paths, train
from dltutorial.data.loaders import SnapshotPairs
from dltutorial.data.store import open_split
from dltutorial.distributed import ThisRank
from dltutorial.errors import CourseError
from dltutorial.models.vit import ViT
from dltutorial.ranks import RankInfo
from dltutorial.train_options import read_options


def losses(run):
    """Return (step, loss) of every line of a run that holds a loss."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def weights(run):
    return torch.load(run / "weights.pt", weights_only=True)


def assert_same_result(run, expected):
    """Both runs have the same losses and the same weights, to the bit. Steps that were made again count once."""
    assert set(losses(run)) == set(losses(expected))
    for name, weight in weights(expected).items():
        assert torch.equal(weights(run)[name], weight), name


def test_a_run_leaves_its_options_its_metrics_and_its_weights(uninterrupted):
    assert json.loads((uninterrupted / "config.json").read_text())["steps"] == STEPS
    assert [step for step, _ in losses(uninterrupted)] == list(range(1, STEPS + 1))
    assert len(list((uninterrupted / "checkpoints").iterdir())) == 2
    assert weights(uninterrupted)["position_1TD"].ndim == 3


def test_a_second_run_gets_a_folder_of_its_own(start):
    assert start("--steps", 2).wait() == [0]
    second = start("--steps", 2)
    assert second.wait() == [0]
    assert len(list(second.runs.iterdir())) == 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_by_a_signal_and_resumed_it_is_the_run_that_was_never_stopped(start, ranks):
    words = ["--steps", 100, "--checkpoint-every", 0]
    expected = start(*words, "--name", "train-whole", ranks=ranks)
    assert expected.wait() == [0] * ranks
    training = start(*words, ranks=ranks)
    wait_for(lambda: any(file.stat().st_size for file in training.runs.glob("train-2*/metrics.jsonl")))
    (run,) = training.runs.glob("train-2*")
    os.kill(training.processes[-1].pid, signal.SIGUSR1)  # one rank is enough
    assert training.wait()[0] == 75
    assert "stopped by a signal" in training.printed()
    assert start(*words, "--resume", run, ranks=ranks).wait() == [0] * ranks
    (whole,) = expected.runs.glob("train-whole-*")
    assert_same_result(run, whole)


def test_killed_at_any_moment_it_goes_on_from_a_complete_checkpoint(start, uninterrupted):
    training = start()
    run = training.folder()
    for n_checkpoints in (1, 5, 9):
        wait_for(lambda n=n_checkpoints: list((run / "checkpoints").glob(f"step-*{2 * n:02d}.pt")))
        training.processes[0].kill()
        assert training.wait() == [-signal.SIGKILL]
        training = start("--resume", run)
    assert training.wait() == [0], training.printed()
    assert_same_result(run, uninterrupted)


def test_a_truncated_checkpoint_is_skipped_and_the_one_before_it_is_used(start, uninterrupted, tmp_path):
    run = tmp_path / "runs" / "train-copy"
    shutil.copytree(uninterrupted, run)
    newest = max((run / "checkpoints").iterdir())
    os.truncate(newest, newest.stat().st_size // 2)
    (run / "weights.pt").unlink()
    training = start("--resume", run)
    assert training.wait() == [0], training.printed()
    assert f"{newest.name} cannot be read" in training.printed()
    assert f"step {STEPS - 2} of {STEPS}" in training.printed()
    assert_same_result(run, uninterrupted)


def test_a_good_checkpoint_of_another_model_is_an_error_and_keeps_its_name(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    small, large = nn.Linear(2, 2), nn.Linear(3, 2)
    checkpoint.save_checkpoint(tmp_path, 1, small, torch.optim.AdamW(small.parameters()))
    with pytest.raises(RuntimeError, match="size mismatch"):
        checkpoint.load_checkpoint(tmp_path, large, torch.optim.AdamW(large.parameters()))
    assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == ["step-00000001.pt"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes."),
    ],
)
@pytest.mark.parametrize("place", ["reading", "applying"])
def test_too_little_memory_is_an_error_and_the_checkpoint_keeps_its_name(place, error, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    (tmp_path / "checkpoints").mkdir()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint.save_checkpoint(tmp_path, 1, model, optimizer)
    target, name = {"reading": (torch, "load"), "applying": (model, "load_state_dict")}[place]
    monkeypatch.setattr(target, name, fail)
    with pytest.raises(type(error), match="memory"):
        checkpoint.load_checkpoint(tmp_path, model, optimizer)
    assert [file.name for file in (tmp_path / "checkpoints").iterdir()] == ["step-00000001.pt"]


@pytest.mark.parametrize("is_simulated", [True, False])
def test_only_the_simulated_planet_is_shifted_and_a_resumed_run_gets_the_same_batches(is_simulated, tiny_data):
    """Data of ``--data`` may have continents, which must stay at their longitude."""
    data = [] if is_simulated else ["--data", str(tiny_data)]
    options = read_options(["--preset", "smoke", "--global-batch-size", "4", *data])
    this_rank = ThisRank(RankInfo.from_env({}), torch.device("cpu"))
    pairs = SnapshotPairs(open_split(tiny_data, "train"))
    batches = list(itertools.islice(train.make_batches(pairs, options, this_rank, n_batches_to_skip=0), 3))
    samples = [x_CHW for x_CHW, _ in (pairs[i] for i in range(len(pairs)))]
    is_shifted = [not any(torch.equal(x_CHW, sample) for sample in samples) for x_CHW in batches[0][0]]
    assert any(is_shifted) is is_simulated
    resumed_x, resumed_y = next(train.make_batches(pairs, options, this_rank, n_batches_to_skip=2))
    assert torch.equal(resumed_x, batches[2][0])
    assert torch.equal(resumed_y, batches[2][1])


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (2, ["--shard", "full"]),
        (2, ["--tensor", 2]),
        (4, ["--tensor", 2, "--shard", "full"]),
        (1, ["--accumulate", 2, "--checkpoint-activations", "--workers", 2]),
        (2, ["--accumulate", 2]),
    ],
)
def test_however_it_is_computed_the_training_is_the_same(start, uninterrupted, ranks, words):
    """The sums are made in other orders, so they agree up to rounding."""
    training = start(*words, ranks=ranks)
    assert training.wait() == [0] * ranks, training.printed()
    for (step, loss), (expected_step, expected) in zip(losses(training.folder()), losses(uninterrupted), strict=True):
        assert step == expected_step
        assert loss == pytest.approx(expected, rel=1e-4)
    for name, weight in weights(uninterrupted).items():
        torch.testing.assert_close(weights(training.folder())[name], weight, atol=1e-3, rtol=1e-2)


@pytest.mark.ci
def test_bfloat16_is_close_to_float32_with_and_without_shards(start, uninterrupted):
    for words in (["--name", "train-ddp"], ["--name", "train-shards", "--shard", "full"]):
        training = start(*words, "--precision", "bf16", ranks=2)
        assert training.wait() == [0, 0], training.printed()
        (run,) = training.runs.glob(f"{words[1]}-*")
        for (_, loss), (_, expected) in zip(losses(run), losses(uninterrupted), strict=True):
            assert loss == pytest.approx(expected, rel=2e-2)


@pytest.mark.ci
def test_a_sharded_run_is_resumed_by_more_ranks_from_the_newest_complete_checkpoint(start, uninterrupted):
    """torch.distributed.checkpoint gives each rank the shards that it needs. The newest checkpoint is damaged."""
    training = start("--shard", "full", ranks=2)
    run = training.folder()
    wait_for(lambda: list((run / "checkpoints").glob("step-*06")))
    for process in training.processes:
        process.kill()
    training.wait()
    newest = max((run / "checkpoints").glob("step-*"))
    for file in newest.glob("*.distcp"):
        os.truncate(file, 10)
    resumed = start("--resume", run, "--shard", "full", ranks=4)
    assert resumed.wait() == [0] * 4, resumed.printed()
    assert f"{newest.name} cannot be read" in resumed.printed()
    loss_by_step = dict(losses(run))  # of a step that was made twice, the second loss; they differ by rounding
    assert loss_by_step == pytest.approx(dict(losses(uninterrupted)), rel=1e-4)


def test_a_rank_that_dies_ends_the_other_one_and_the_run_goes_on(start):
    training = start(ranks=2)
    run = training.folder()
    wait_for(lambda: list((run / "checkpoints").glob("step-*04.pt")))
    training.processes[1].kill()
    assert training.wait()[0] == 2
    assert "dltutorial: " in training.printed().splitlines()[-1]
    assert start("--resume", run, ranks=2).wait() == [0, 0]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--step", "x"], "argument --steps: invalid int value: 'x'"),
        (["--layers", "3"], "unrecognized arguments: --layers 3"),
        (["--data", "nowhere"], "nowhere"),
        (["--name", "../x"], "bad name '../x'"),
        (["--resume", "nowhere"], "nowhere/config.json cannot be read"),
        (["--global-batch-size", "5", "--accumulate", "2"], "--global-batch-size 5 cannot be shared equally"),
        (["--tensor", "3"], "--tensor 3 must divide the 1 ranks"),
        (["--steps", "5", "--warmup-steps", "6"], "--warmup-steps 6 is more than --steps 5"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(words, line, capsys):
    """A learner's mistakes, and what the program says about them."""
    try:
        status = cli.main(["train", "--preset", "smoke", *words])
    except SystemExit as error:
        status = error.code
    assert status == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert line in printed


def test_a_run_of_other_options_is_not_resumed(uninterrupted):
    with pytest.raises(CourseError, match=r"--seed 1 differs from 0 in .*leave the option out to resume"):
        read_options(["--resume", str(uninterrupted), "--seed", "1"])
    assert read_options(["--resume", str(uninterrupted)]).steps == STEPS


def test_a_loss_that_is_not_finite_ends_the_run_with_one_line(start):
    training = start("--learning-rate", 1e30)
    assert training.wait() == [2]
    assert "the loss is not finite after" in training.printed().splitlines()[-1]


def test_a_full_disk_is_one_line_and_keeps_the_checkpoint_before(uninterrupted, monkeypatch, tmp_path):
    """A file of /dev/full accepts no byte, as a full disk."""
    file = tmp_path / "step-00000002.pt"
    monkeypatch.setattr(paths.secrets, "token_hex", lambda n: "full")
    (tmp_path / f".{file.name}.full.partial").symlink_to("/dev/full")
    with pytest.raises(CourseError, match=r"cannot write .*step-00000002.pt: .*make room"):
        checkpoint.save_atomically({"step": 2}, file)
    assert not file.exists()


def test_the_learning_rate_rises_and_then_falls_along_half_a_cosine():
    options = read_options(["--preset", "smoke", "--steps", "110", "--warmup-steps", "10", "--learning-rate", "1"])
    schedule = train.make_schedule(options)
    rates = [options.learning_rate * schedule(step) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert rates[60] == pytest.approx((1 + 0.01) / 2, rel=0.02)
    assert rates[-1] < 0.02


def test_weight_decay_acts_on_matrices_and_convolution_kernels():
    """The groups of the vision transformer are those of its linear layers and of all other parameters."""
    options = read_options(["--preset", "smoke"])
    resnet = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv3d(1, 2, 3), nn.Linear(2, 2))
    decayed, not_decayed = (group["params"] for group in train.make_optimizer(resnet, options).param_groups)
    assert [p.ndim for p in decayed] == [4, 5, 2]
    assert {p.ndim for p in not_decayed} == {1}
    vit = ViT(3, 16, 24, patch=4, dim=32, depth=1, heads=4)
    decayed, not_decayed = (group["params"] for group in train.make_optimizer(vit, options).param_groups)
    assert {p.ndim for p in decayed} == {2}
    assert not any(p.ndim == 2 for p in not_decayed)
