"""Training on several ranks gives the losses of one rank; whatever happens to one rank, all end together."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys

import mates
import pytest
import torch
from mates import SMALL
from nursing import KNOBS, wait_for
from same_run import assert_same_run

from dltutorial.data import store
from dltutorial.engine import forecasting, run_folder
from dltutorial.engine.recipe import DDP
from dltutorial.launch import RankFailed, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """(folder, what mates.train returns) of a run on one rank."""
    before, machine = torch.get_num_threads(), mates.machine.use_cores
    folder = tmp_path_factory.mktemp("runs") / "alone"
    yield folder, mates.train(data, folder)
    mates.machine.use_cores = machine
    torch.set_num_threads(before)


def assert_close_runs(one, other):
    assert [step for step, *_ in one] == [step for step, *_ in other]
    assert [loss for _, loss, _ in one] == pytest.approx([loss for _, loss, _ in other], rel=1e-5)
    for (_, _, scores), (_, _, others) in zip(one, other, strict=True):
        assert scores == pytest.approx(others, rel=1e-4)


# The same run, shared


@pytest.mark.parametrize("loader", ["plain", "best"])
def test_the_samples_of_each_global_batch_are_the_same_for_any_number_of_ranks(data, loader):
    split = store.open_split(data, "train")
    recipe = dataclasses.replace(SMALL, loader=loader)

    def batches(world_size, n=4, skip=0):
        parts = [forecasting.batches(split, recipe, "cpu", skip, rank, world_size) for rank in range(world_size)]
        found = [torch.cat([next(part)[0].clone() for part in parts]) for _ in range(n)]
        for part in parts:
            part.close()
        return [sorted(x_CHW.flatten().tolist() for x_CHW in batch) for batch in found]

    whole = batches(1)
    assert all(len({tuple(x) for x in batch}) == SMALL.global_batch_size for batch in whole)
    for world_size in (2, 3, 4):
        assert batches(world_size) == whole
    assert batches(2, n=2, skip=2) == whole[2:]


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.ci)])
def test_losses_and_scores_are_those_of_one_rank(data, alone, tmp_path, world_size):
    results = launch(mates.train, world_size, data, tmp_path / "r")
    assert all(result == results[0] for result in results)
    assert_close_runs(alone[1][0], results[0][0])
    weights = torch.load(tmp_path / "r" / "weights.pt")
    torch.testing.assert_close(weights, torch.load(alone[0] / "weights.pt"), rtol=1e-3, atol=1e-5)


@pytest.mark.ci
def test_other_knobs_work_on_ranks_too(data, alone, tmp_path):
    variants = [{"ddp": kind} for kind in DDP]
    variants += [{"loader": "best", "optimizer_impl": "fused", "fused_attention": False}]
    variants += [{"accumulate": 2, "checkpoint_activations": True}]
    for seen, _ in launch(mates.train_all, 2, data, tmp_path / "r", variants)[0]:
        assert_close_runs(alone[1][0], seen)


def test_what_ranks_agree_on():
    ranks = launch(mates.agreements, 3)
    for result in ranks:
        assert result["stop"] == [False, False, True, False, True, False]  # with the next call
        assert result["broadcast"] == {"from": 0}
        assert result["gather"] == ["rank 0", "rank 1", "rank 2"]
        assert result["sum"].tolist() == [3.0, 6.0]
        assert torch.equal(result["mean"], ranks[0]["mean"])
        torch.testing.assert_close(result["mean"], 2 * torch.tensor([0.1, 1e8, 3.0]))


def test_what_fails_on_one_rank_fails_on_all_and_that_rank_says_why():
    other = ("AnotherRankFailed", "rank 1 of 3: no 1")
    assert launch(mates.all_or_none, 3, (1,)) == [other, ("ValueError", "no 1"), other]


# Stopped and resumed


def test_asked_on_one_rank_all_end_after_the_same_update_and_resume_to_the_bit(data, tmp_path):
    """To the bit on two ranks, because a sum of two numbers has no order."""
    whole, _ = launch(mates.train, 2, data, tmp_path / "whole")[0]
    stopped = launch(mates.train, 2, data, tmp_path / "r", end_at=4, ends=1)
    for _, ending in stopped:
        assert "after 5 updates" in ending
    resumed, _ = launch(mates.train, 2, data, tmp_path / "r", resume=True)[0]
    assert resumed == whole[-len(resumed) :]
    assert_same_run(tmp_path / "whole", tmp_path / "r")


@pytest.mark.ci
def test_on_another_number_of_ranks_it_goes_on_with_the_same_data(data, alone, tmp_path):
    launch(mates.train, 2, data, tmp_path / "r", end_at=4)
    resumed, _ = launch(mates.train, 3, data, tmp_path / "r", resume=True)[0]
    assert_close_runs([record for record in alone[1][0] if record[0] > 5], resumed)


# What cannot be


def test_ranks_with_different_recipes_are_refused(data, tmp_path):
    with pytest.raises(RankFailed, match="rank 1 has another seed than rank 0; start all ranks alike"):
        launch(mates.differing, 2, data, tmp_path / "r")


# The command line


def said_in(nursery, rank):
    return [line for line in nursery.said_by(rank).read_text().splitlines() if "training:" not in line]


@pytest.fixture(scope="module")
def whole(nursery, data):
    """A run on two ranks that was never stopped."""
    assert nursery.train_ranks(2, "whole", data) == [0, 0], nursery.said_by(0).read_text()
    return nursery.run("whole")


@pytest.mark.ci
def test_torchrun_starts_the_same_command_and_rank_0_alone_prints(nursery, data, whole, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--redirects", "3"]
    command += ["--log-dir", str(tmp_path / "logs"), "-m", "dltutorial", "train", "--name", "torchrun"]
    command += ["--data", str(data), "--device", "cpu", *KNOBS, "--track"]
    runs = {"DLTUTORIAL_RUNS": str(nursery.folder / "runs")}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | runs, timeout=250)
    assert done.returncode == 0, done.stderr
    assert_same_run(whole, nursery.run("torchrun"))
    logs = {file.parent.name: file.read_text() for file in (tmp_path / "logs").rglob("std*.log") if file.read_text()}
    assert set(logs) == {"0"}


@pytest.mark.ci
def test_a_signal_to_one_rank_ends_all_with_one_checkpoint(nursery, data, whole):
    folder = nursery.run("signal")
    pids = nursery.start_ranks(2, "signal", data, trouble=["slow"])
    wait_for((folder / "checkpoints").exists, nursery.said_by(0))
    os.kill(pids[1], signal.SIGUSR1)
    assert [nursery.wait(pid) for pid in pids] == [75, 75]
    assert run_folder.run_status(folder) == "interrupted"
    assert [line for line in said_in(nursery, 0) if "a checkpoint is written, go on with --resume" in line]
    assert said_in(nursery, 1) == []
    assert nursery.train_ranks(2, "signal", data) == [0, 0]
    assert_same_run(whole, folder)


@pytest.mark.ci
def test_a_killed_rank_leaves_no_other_waiting(nursery, data):
    pids = nursery.start_ranks(2, "killed", data, "--steps", 10_000)
    wait_for((nursery.run("killed") / "checkpoints").exists, nursery.said_by(0))
    os.kill(pids[1], signal.SIGKILL)
    assert [nursery.wait(pid) for pid in pids] == [1, -signal.SIGKILL]
    (line,) = [line for line in said_in(nursery, 0) if line.startswith("dltutorial:")]
    assert "another rank is gone" in line


@pytest.mark.ci
def test_one_rank_reports_its_error_and_the_other_that_it_is_gone(nursery, data, tmp_path):
    own = shutil.copytree(data, tmp_path / "own")
    pids = nursery.start_ranks(2, "damaged", data, "--steps", 10_000, "--loader", "naive", data_of={1: own})
    wait_for((nursery.run("damaged") / "checkpoints").exists, nursery.said_by(0))
    for file in (own / "train").glob("*.h5"):
        os.truncate(file, 3000)
    assert [nursery.wait(pid) for pid in pids] == [1, 2]
    (line,) = [line for line in said_in(nursery, 0) if line.startswith("dltutorial")]
    assert "another rank is gone" in line
    assert [line for line in said_in(nursery, 1) if "rank 1 of 2" in line and "truncated" in line]
    assert run_folder.run_status(nursery.run("damaged")) == "failed"


@pytest.mark.ci
def test_what_all_ranks_refuse_rank_0_says_once(nursery, data):
    assert nursery.train_ranks(2, "odd", data, "--global-batch-size", 7) == [2, 2]
    (line,) = said_in(nursery, 0)
    assert "cannot be shared equally by 2 ranks" in line
    assert said_in(nursery, 1) == []
    assert not nursery.run("odd").exists()
