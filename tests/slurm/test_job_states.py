"""What Slurm says of a job: its state, why it waits, the end of its log."""

import pytest
from waiting import wait_for

from dltutorial.launch import job_output, jobs, pocket, workplace

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def test_a_job_tells_state_place_and_log_and_is_cancelled(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    (tmp_path / "some.sbatch").write_text("#!/bin/bash\necho 'at work'\nsleep 1000\n")
    job = jobs.submit(str(tmp_path / "some.sbatch"), env=cluster.env)
    wait_for(lambda: jobs.state(job).word == "RUNNING" and job_output.tail(job))
    assert jobs.state(job).nodes.startswith("n")
    assert job_output.tail(job)[-1] == "at work"
    jobs.cancel(job)
    wait_for(lambda: jobs.state(job).word == "CANCELLED")


def test_a_job_that_waits_says_why(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    (tmp_path / "some.sbatch").write_text("#!/bin/bash\n")
    job = jobs.submit(str(tmp_path / "some.sbatch"), env=cluster.env, options=["--begin=now+1hour"])
    assert (jobs.state(job).word, jobs.state(job).reason) == ("PENDING", "BeginTime")
    jobs.cancel(job)


def test_a_chapter_has_its_cluster_and_leaves_none(monkeypatch, capfd):
    lab = workplace.place("tests-place", nodes=1)
    assert lab.srun("-N1", "echo", "here").stdout == "here\n"
    lab.close()
    assert pocket.status("tests-place") is None
