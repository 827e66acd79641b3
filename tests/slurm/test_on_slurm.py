"""A function as a Slurm job behaves as a function on local ranks does, without sacct."""

import time

import pytest

from dltutorial.errors import CourseError
from dltutorial.launch import RankFailed, RanksHang, jobs, on_slurm
from dltutorial.ranks import RankInfo

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def launch(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))

    def call(function, nodes, *args, **options):
        try:
            return on_slurm.launch_on_slurm(function, nodes, *args, site="pocket", env=cluster.env, **options)
        finally:
            assert not list((tmp_path / "jobs").glob("launch-*/"))

    return call


def test_every_ranks_value_comes_back_in_order_and_lines_carry_their_rank(launch, capsys):
    def total(scale):
        import torch
        import torch.distributed as dist

        info = RankInfo.from_env()
        x = torch.ones(1) * info.rank
        dist.all_reduce(x)
        print("on node", info.node_rank)
        return info.rank, scale * x.item()

    assert launch(total, 2, 10, ranks_per_node=2, timeout_s=200) == [(n, 60.0) for n in range(4)]
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if "on node" in line) == [f"[rank {n}] on node {n // 2}" for n in range(4)]


def test_an_exception_is_that_ranks_with_its_own_frames(launch):
    def divide():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            return 1 / 0
        dist.barrier()

    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed: ZeroDivisionError: division by zero") as caught:
        launch(divide, 2, timeout_s=200)
    assert "return 1 / 0" in str(caught.value)


def test_a_killed_rank_is_named_and_not_those_that_miss_it(launch):
    def die():
        import os
        import signal

        import torch.distributed as dist

        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    with pytest.raises(CourseError, match=r"failed: srun: error: n\d: task 1: Killed"):
        launch(die, 2, timeout_s=200)


@pytest.mark.timed  # until the deadline it has to arrive where it hangs
def test_a_hang_ends_at_the_deadline_and_says_where(launch):
    def stuck():
        time.sleep(1000)

    began = time.monotonic()
    with pytest.raises(RanksHang, match=r"rank 0 is at .*, in stuck: time.sleep\(1000\)"):
        launch(stuck, 1, timeout_s=10)
    assert time.monotonic() - began < 100


def test_a_job_that_never_starts_is_cancelled_at_the_deadline(launch):
    with pytest.raises(CourseError, match=r"was still PENDING \(BeginTime\) after 2 s and is cancelled"):
        launch(int, 1, options=["--begin=now+1hour"], timeout_s=2)


def test_a_cancelled_job_ends_the_launch(launch, monkeypatch):
    real = jobs.submit

    def submit(*args, **options):
        job = real(*args, **options)
        jobs.cancel(job)
        return job

    monkeypatch.setattr(jobs, "submit", submit)
    with pytest.raises(CourseError, match="was cancelled"):
        launch(int, 1, timeout_s=200)
