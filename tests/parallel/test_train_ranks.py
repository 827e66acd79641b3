"""Training on several ranks is training on one, only shared; whatever happens to one rank, all end together."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import mates
import psutil
import pytest
import torch
from mates import SMALL
from nursing import KNOBS, kill_at_random, wait_for
from same_run import assert_same_run, records

from dltutorial.config import DDP
from dltutorial.data import store
from dltutorial.launch import RankFailed, launch
from dltutorial.train import checkpoint, compiling, forecasting, run_folder

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
KILLS = int(os.environ.get("DLTUTORIAL_KILLS", 2))
SOON_S = 90.0  # long before a collective gives up


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


@pytest.mark.parametrize("loader", ["plain", "naive", "lean", "best"])
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


def test_losses_and_scores_are_those_of_one_rank(data, alone, tmp_path):
    for world_size in (2, 3):
        folder = tmp_path / str(world_size)
        found = launch(mates.train, world_size, data, folder)
        assert all(seen == found[0] for seen in found)
        assert_close_runs(alone[1][0], found[0][0])
        for name, one in torch.load(alone[0] / "weights.pt").items():
            torch.testing.assert_close(torch.load(folder / "weights.pt")[name], one, rtol=1e-3, atol=1e-5)


@pytest.mark.ci
def test_the_knobs_of_part_one_work_on_ranks_too(data, alone, tmp_path):
    variants = [{"loader": "naive"}, {"loader": "best", "optimizer_impl": "fused", "fused_attention": False}]
    variants += [] if compiling.missing("cpu") else [{"compile": "default"}]
    for seen, _ in launch(mates.train_all, 2, data, tmp_path / "r", variants)[0]:
        assert_close_runs(alone[1][0], seen)


def test_what_saves_memory_trains_the_same_on_ranks(data, alone, tmp_path):
    variants = [{"accumulate": 2, "checkpoint_activations": True}, {"accumulate": 2, "ddp": "overlapped"}]
    for seen, _ in launch(mates.train_all, 2, data, tmp_path / "r", variants)[0]:
        assert_close_runs(alone[1][0], seen)


def test_validation_is_shared_and_its_scores_are_the_same_to_the_bit(data, alone):
    assert launch(mates.scores, 4, data) == [mates.scores(data)] * 4


@pytest.mark.parametrize("kind", DDP)
def test_shared_gradients_are_those_of_the_whole_batch(kind):
    net = mates.Net()
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(2))
    net(x).square().mean().backward()
    first, *others = launch(mates.gradients, 3, kind)
    for parameter, average, *same in zip(net.parameters(), first, *others, strict=True):
        assert (average is None) == (parameter.grad is None)
        if average is not None:
            torch.testing.assert_close(average, parameter.grad)
            assert all(torch.equal(average, other) for other in same)


def test_what_ranks_agree_on():
    found = launch(mates.agreements, 3)
    for said in found:
        assert said["stop"] == [False, False, True, False, True, False]  # with the next call
        assert said["broadcast"] == {"from": 0}
        assert said["gather"] == ["rank 0", "rank 1", "rank 2"]
        assert said["sum"].tolist() == [3.0, 6.0]
        assert torch.equal(said["mean"], found[0]["mean"])
        assert torch.equal(said["again"], said["mean"])
        torch.testing.assert_close(said["mean"], 2 * torch.tensor([0.1, 1e8, 3.0]))


@pytest.mark.parametrize("fail", [(), (0,), (1,), (0, 1, 2), (1, 2)])
def test_what_fails_on_one_rank_fails_on_all_and_one_of_them_says_why(fail):
    for rank, heard in enumerate(launch(mates.all_or_none, 3, fail)):
        if not fail:
            assert heard is None
        elif rank == fail[0]:
            assert heard == ("ValueError", f"no {rank}")
        else:
            assert heard == ("AnotherRankFailed", f"rank {fail[0]} of 3: no {fail[0]}")


@pytest.mark.parametrize("kind", ["torch", "overlapped"])
def test_all_begin_with_the_weights_and_buffers_of_rank_0(kind):
    first, second = launch(mates.share, 2, kind)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# Stopped and gone on with


@pytest.mark.parametrize(("world_size", "ddp"), [(2, "torch"), (3, "torch"), (3, "overlapped")])
def test_asked_on_any_rank_all_end_after_the_same_update_and_go_on_as_if_never_stopped(data, tmp_path, world_size, ddp):
    """To the bit on two ranks: a sum of two numbers has no order.

    On more, torch's DDP sorts its buckets once more after its first backward pass, so a resumed run adds up in another
    order than the one never stopped. The course's own does not.
    """
    recipe = dataclasses.replace(SMALL, ddp=ddp)
    whole, _ = launch(mates.train, world_size, data, tmp_path / "whole", recipe)[0]
    for end_at in (2, 7):
        stopped = launch(
            mates.train, world_size, data, tmp_path / "r", recipe, end_at=end_at, ends=1, resume=end_at > 2
        )
        assert {ending.partition("updates")[0] for _, ending in stopped} == {
            f"asked to end after {end_at + 1 + (0 if end_at == 2 else 3)} "
        }
    resumed, _ = launch(mates.train, world_size, data, tmp_path / "r", recipe, resume=True)[0]
    assert_close_runs(whole[-len(resumed) :], resumed)
    if world_size == 2 or ddp != "torch":
        assert_same_run(tmp_path / "whole", tmp_path / "r")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_on_another_number_of_ranks_it_goes_on_with_the_same_data(data, alone, tmp_path, before, after):
    on = lambda n, **how: launch(mates.train, n, data, tmp_path / "r", **how)  # noqa: E731
    on(before, end_at=4)
    found = on(after, resume=True)
    whole = alone[1][0]
    assert_close_runs([seen for seen in whole if seen[0] > 4 + (before > 1)], found[0][0])


def test_every_ranks_random_states_are_kept(data, tmp_path):
    launch(mates.train, 2, data, tmp_path / "r", end_at=2)
    saved = checkpoint.newest(tmp_path / "r" / "checkpoints")
    assert len(saved.random) == 2
    assert saved.random[0]["python"] != saved.random[1]["python"]


# What cannot be


def test_ranks_with_different_recipes_are_refused(data, tmp_path):
    with pytest.raises(RankFailed, match="rank 1 has another seed than rank 0; start all ranks alike"):
        launch(mates.differing, 2, data, tmp_path / "r")


# The command line


def said_in(nursery, rank):
    return [line for line in nursery.said_by(rank).read_text().splitlines() if "training:" not in line]


@pytest.fixture(scope="module")
def whole(nursery, data):
    """A run on two ranks that was never stopped, and how long it took with slow writing."""
    start = time.perf_counter()
    assert nursery.train_ranks(2, "whole", data, trouble=["slow"]) == [0, 0], nursery.said_by(0).read_text()
    return nursery.run("whole"), time.perf_counter() - start


def test_torchrun_starts_the_same_command_and_rank_0_alone_prints(nursery, data, whole, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--redirects", "3"]
    command += ["--log-dir", str(tmp_path / "logs"), "-m", "dltutorial", "train", "--name", "torchrun"]
    command += ["--data", str(data), "--device", "cpu", *KNOBS, "--track"]
    runs = {"DLTUTORIAL_RUNS": str(nursery.folder / "runs")}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | runs, timeout=250)
    assert done.returncode == 0, done.stderr
    assert_same_run(whole[0], nursery.run("torchrun"))
    logs = {file.parent.name: file.read_text() for file in (tmp_path / "logs").rglob("std*.log") if file.read_text()}
    assert set(logs) == {"0"}


@pytest.mark.ci
def test_what_torchrun_starts_again_goes_on(nursery, data, whole):
    """With the same store, in which ranks have said that they failed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "-m", "dltutorial", "train", "--name", "again", "--resume"]
    command += ["--data", str(data), "--device", "cpu", *KNOBS, "--checkpoint-every", "2", "--track"]
    runs = {"DLTUTORIAL_RUNS": str(nursery.folder / "runs")}
    (nursery.run("again") / "checkpoints").mkdir(parents=True)
    (nursery.run("again") / "recipe.json").write_text("no recipe yet")
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | runs)
    said = []
    for line in running.stderr:
        said.append(line)
        if "is not JSON" in line:
            (nursery.run("again") / "recipe.json").unlink(missing_ok=True)
            (nursery.run("again") / "checkpoints").rmdir()
    assert running.wait(250) == 0, said
    assert_same_run(whole[0], nursery.run("again"))


def test_under_srun_ranks_find_each_other_without_being_told_where(nursery, data, whole):
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[0-1]"}
    job |= {"SLURM_NTASKS": "2", "SLURM_GTIDS": "0,1"}
    unset = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"))
    pids = [
        nursery.start("srun", data, said=nursery.said_by(rank), env=unset | job | {"MASTER_PORT": None}
                      | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        for rank in range(2)
    ]  # fmt: skip
    assert [nursery.wait(pid) for pid in pids] == [0, 0], said_in(nursery, 0)
    assert said_in(nursery, 1) == []
    assert_same_run(whole[0], nursery.run("srun"))


@pytest.mark.ci
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_to_one_rank_ends_all_with_one_checkpoint(nursery, data, whole, name):
    folder = nursery.run(name)
    pids = nursery.start_ranks(2, name, data, trouble=["slow"])
    wait_for((folder / "checkpoints").exists, nursery.said_by(0))
    os.kill(pids[1], getattr(signal, name))
    assert [nursery.wait(pid) for pid in pids] == [75, 75]
    assert run_folder.run_status(folder) == "interrupted"
    assert [line for line in said_in(nursery, 0) if "a checkpoint is written, go on with --resume" in line]
    assert said_in(nursery, 1) == []
    assert nursery.train_ranks(2, name, data) == [0, 0]
    assert_same_run(whole[0], folder)


def test_a_signal_that_also_ends_loading_processes_ends_all_in_order(nursery, data, whole):
    folder = nursery.run("workers")
    pids = nursery.start_ranks(2, "workers", data, "--workers", 1, trouble=["slow"])
    wait_for(lambda: list((folder / "checkpoints").glob("step-*")), nursery.said_by(0))
    for process in (psutil.Process(pids[1]), *psutil.Process(pids[1]).children()):
        process.terminate()
    assert [nursery.wait(pid) for pid in pids] == [75, 75], said_in(nursery, 1)
    assert run_folder.run_status(folder) == "interrupted"
    assert said_in(nursery, 1) == []
    assert nursery.train_ranks(2, "workers", data, "--workers", 1) == [0, 0]
    assert_same_run(whole[0], folder)


def test_no_rank_ends_before_the_folder_of_the_run_is_closed(nursery, data):
    """A launcher ends the others 30 s after the first."""
    folder = nursery.run("closing")
    pids = nursery.start_ranks(2, "closing", data, "--steps", 10_000, trouble=["slow to close"])
    wait_for((folder / "checkpoints").exists, nursery.said_by(0))
    os.kill(pids[1], signal.SIGTERM)
    assert nursery.wait(pids[1]) == 75
    assert run_folder.run_status(folder) == "interrupted"
    assert nursery.wait(pids[0]) == 75


def contents(folder):
    """What no run may change that is not the owner."""
    return {name: (folder / name).read_bytes() for name in ("recipe.json", "status.json")}


def steps_of(folder):
    return [line["step"] for line in records(folder)]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("how", "why"),
    [("--resume", "is being trained by process"), ("--overwrite", "is being trained by process"), (None, "already")],
)
def test_all_others_of_a_name_are_refused_while_its_run_goes_on(nursery, data, how, why):
    """One process owns it, two ranks want it; then the other way round."""
    folder = nursery.run(f"owned{how}")
    for n in (1, 2):
        owners = nursery.start_ranks(n, folder.name, data, "--steps", 10_000) if n > 1 else [
            nursery.start(folder.name, data, "--steps", 10_000)
        ]  # fmt: skip
        wait_for(lambda: run_folder.run_status(folder) == "running", nursery.said_by(0))
        wait_for(lambda: (folder / "progress.jsonl").exists(), nursery.said_by(0))
        before, others = contents(folder), [how] if how else []
        argv = [folder.name, data, "--steps", 10_000, "--seed", 0 if how == "--resume" else 5]
        assert set(nursery.train_ranks(3 - n, *argv, how=others)) == {2}
        (line,) = [line for line in said_in(nursery, 0) if line.startswith("dltutorial")]
        assert why in line
        assert contents(folder) == before
        os.kill(owners[-1], signal.SIGTERM)
        assert [nursery.wait(pid) for pid in owners] == [75] * n
        assert steps_of(folder) == sorted(set(steps_of(folder)))
    assert [entry.name for entry in folder.parent.glob(f".{folder.name}*")] == []


@pytest.mark.ci
@pytest.mark.parametrize("how", ["--resume", "--overwrite", None])
def test_of_two_that_start_in_the_same_instant_one_trains(nursery, data, how):
    folder = nursery.run(f"instant{how}")
    says = [nursery.folder / f"said.instant-{number}" for number in range(2)]
    pids = [
        nursery.start(folder.name, data, "--steps", 10_000, "--seed", number if how != "--resume" else 0, said=said,
                      how=[how] if how else [])
        for number, said in enumerate(says)
    ]  # fmt: skip
    ended = lambda: [pid for pid in pids if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE]  # noqa: E731
    wait_for(lambda: ended() and (folder / "progress.jsonl").exists(), says[0])
    wait_for(lambda: list((folder / "checkpoints").glob("step-*")), says[0])
    (loser,) = ended()
    winner = pids.index(loser) ^ 1
    assert nursery.wait(loser) == 2
    (line,) = [line for line in says[winner ^ 1].read_text().splitlines() if line.startswith("dltutorial")]
    assert "is being trained by process" in line or "holds a run already" in line
    os.kill(pids[winner], signal.SIGTERM)
    assert nursery.wait(pids[winner]) == 75
    assert json.loads((folder / "recipe.json").read_text())["seed"] == (winner if how != "--resume" else 0)
    assert steps_of(folder) == sorted(set(steps_of(folder)))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_leaves_nobody_waiting(nursery, data, victim):
    pids = nursery.start_ranks(2, f"killed-{victim}", data, "--steps", 10_000)
    wait_for((nursery.run(f"killed-{victim}") / "checkpoints").exists, nursery.said_by(0))
    os.kill(pids[victim], signal.SIGKILL)
    start = time.monotonic()
    statuses = [nursery.wait(pid) for pid in pids]
    assert time.monotonic() - start < SOON_S
    assert statuses[victim] == -signal.SIGKILL
    assert statuses[1 - victim] == 1
    (line,) = [line for line in said_in(nursery, 1 - victim) if line.startswith("dltutorial:")]
    assert "another rank is gone" in line


def test_one_rank_tells_its_error_and_the_other_that_it_is_gone(nursery, data, tmp_path):
    import shutil

    own = shutil.copytree(data, tmp_path / "own")
    pids = nursery.start_ranks(2, "damaged", data, "--steps", 10_000, "--loader", "naive", data_of={1: own})
    wait_for((nursery.run("damaged") / "checkpoints").exists, nursery.said_by(0))
    for file in (own / "train").glob("*.h5"):
        os.truncate(file, 3000)
    start = time.monotonic()
    assert [nursery.wait(pid) for pid in pids] == [1, 2]
    assert time.monotonic() - start < SOON_S
    (line,) = [line for line in said_in(nursery, 0) if line.startswith("dltutorial")]
    assert "another rank is gone" in line
    assert [line for line in said_in(nursery, 1) if "rank 1 of 2" in line and "truncated" in line]
    assert run_folder.run_status(nursery.run("damaged")) == "failed"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("before", "status"),
    [("store.set('failed', '')", 1), ("leaving.set()", 0), ("", 0), ("command._SILENT_S = 0.5", 1)],
)
def test_a_rank_that_waits_for_ever_ends_when_another_has_failed(before, status):
    """Or has been silent for long, as one that was stopped."""

    program = f"""
import threading, time
import torch.distributed as dist
from dltutorial.ranks import RankInfo
from dltutorial.train import command
command._WATCH_S = 0.1
store, leaving = dist.HashStore(), threading.Event()
{before}
store.set('failed', '') if leaving.is_set() else None
watch = threading.Thread(target=command.end_with_others, args=(RankInfo(1, 1, 2, 2), store, leaving), daemon=True)
watch.start()
time.sleep({20 if status else 1})
leaving.set()
watch.join()  # a thread that is in torch while Python ends is ended by SIGABRT; dltutorial train ends by os._exit
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    told = "dltutorial: rank 1 of 2: another rank has failed; see what it said\n"
    if "SILENT" in before:
        silent = "dltutorial: rank 0 of 2 was not heard of for 0.5 s: stopped, or gone; go on with --resume\n"
        told = silent + told
    assert (done.returncode, done.stderr) == (status, told if status else "")


@pytest.mark.ci
def test_a_rank_ends_when_who_holds_the_store_was_stopped():
    """Without torchrun that is rank 0; a question to it waits without a limit."""
    holds = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(60)
"""
    asks = """
import sys, threading, time
import torch.distributed as dist
from dltutorial.ranks import RankInfo
from dltutorial.train import command
command._WATCH_S, command._SILENT_S = 0.1, 2.0
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, is_master=False)
print("asks", flush=True)
sys.stdin.readline()  # until it is stopped
threading.Thread(target=command.end_with_others, args=(RankInfo(1, 1, 2, 2), store, threading.Event())).start()
time.sleep(60)
"""
    holder = subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE, text=True)
    try:
        line = [sys.executable, "-c", asks, holder.stdout.readline().strip()]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(line, **pipes, text=True) as asker:
            assert asker.stdout.readline() == "asks\n"
            holder.send_signal(signal.SIGSTOP)
            _, said = asker.communicate("go\n", timeout=30)
    finally:
        holder.kill()
        holder.wait()
    assert asker.returncode == 1
    assert "rank 1 of 2: the ranks' store did not answer for 2 s: rank 0, or its launcher, was stopped" in said


@pytest.mark.ci
@pytest.mark.parametrize("apart", [["--name", "other"], ["--steps", "30"]])
def test_ranks_that_were_not_started_alike_are_refused_in_one_line(nursery, data, apart):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", "bash", "-c"]
    command += ['exec "$@" $([ $RANK = 1 ] && echo "$APART")', "bash", sys.executable, "-m", "dltutorial", "train"]
    command += ["--name", "alike", "--data", str(data), "--device", "cpu", *KNOBS, "--track"]
    env = {"DLTUTORIAL_RUNS": str(nursery.folder / "apart"), "APART": " ".join(apart)}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | env, timeout=250)
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("dltutorial:")]
    assert "rank 1 has another " in line
    assert "than rank 0; start all ranks alike" in line
    assert not (nursery.folder / "apart").exists()


def test_what_all_ranks_refuse_rank_0_says_once(nursery, data):
    assert nursery.train_ranks(2, "odd", data, "--global-batch-size", 7) == [2, 2]
    (line,) = said_in(nursery, 0)
    assert "cannot be shared equally by 2 ranks" in line
    assert said_in(nursery, 1) == []
    assert not nursery.run("odd").exists()


def test_nan_in_the_data_is_found_by_one_rank_and_told_once(nursery, data, tmp_path):
    import shutil

    import h5py

    bad = shutil.copytree(data, tmp_path / "bad")
    with h5py.File(bad / "train" / "1980.h5", "r+") as year:
        year["fields"][7, 1, 3, 3] = float("nan")
    assert nursery.train_ranks(2, "nan", bad) == [2, 2]
    (line,) = [line for line in said_in(nursery, 0) if line.startswith("dltutorial")]
    assert "1980.h5" in line
    assert said_in(nursery, 1) == []


@pytest.mark.ci
def test_killed_at_random_moments_two_ranks_end_with_the_same_weights(nursery, data, whole, record_property):
    whole, life_s = whole

    def start(number):
        return nursery.start_ranks(2, f"random-{number}", data, trouble=["slow"])

    def finish(number):
        assert_same_run(whole, nursery.run(f"random-{number}"))

    left = 0
    for number in kill_at_random(start, nursery.wait, finish, life_s, KILLS):
        left += checkpoint.newest(nursery.run(f"random-{number}") / "checkpoints") is not None
    assert nursery.train_ranks(2, f"random-{number}", data) == [0, 0], said_in(nursery, 0)
    finish(number)
    record_property("left_a_checkpoint", left)
    print(f"{KILLS} kills, {left} left a checkpoint; {number + 1} runs")


def test_a_finished_run_is_left_alone(nursery, data, whole):
    before = (whole[0] / "weights.pt").stat().st_mtime_ns
    assert nursery.train_ranks(2, "whole", data) == [0, 0]
    assert "nothing was done" in said_in(nursery, 0)[-1]
    assert (whole[0] / "weights.pt").stat().st_mtime_ns == before
    assert json.loads((whole[0] / "status.json").read_text())["status"] == "finished"
    assert [line["step"] for line in records(whole[0])] == [5, 10, 12, 15, 20, 24]
