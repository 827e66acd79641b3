"""What Slurm says of a job: its state, why it waits, its log."""

import pytest
from waiting import wait_for

from dltutorial.launch import executor, pocket

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def test_a_job_tells_state_place_and_log_and_is_cancelled(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    (tmp_path / "some.sbatch").write_text("#!/bin/bash\necho 'at work'\nsleep 1000\n")
    job = executor.sbatch(str(tmp_path / "some.sbatch"), env=cluster.env)
    wait_for(lambda: job.state().word == "RUNNING" and job.output.exists() and job.output.read_text())
    assert job.output.read_text() == "at work\n"
    job.cancel()
    wait_for(lambda: job.state().word == "CANCELLED")


def test_a_job_that_waits_says_why(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    (tmp_path / "some.sbatch").write_text("#!/bin/bash\n")
    job = executor.sbatch(str(tmp_path / "some.sbatch"), env=cluster.env, options=["--begin=now+1hour"])
    assert (job.state().word, job.state().reason) == ("PENDING", "BeginTime")
    job.cancel()


def test_a_chapter_has_its_cluster_and_leaves_none(monkeypatch, capfd):
    lab = executor.start("tests-place", nodes=1)
    assert lab.srun("-N1", "echo", "here").stdout == "here\n"
    lab.close()
    assert pocket.status("tests-place") is None
