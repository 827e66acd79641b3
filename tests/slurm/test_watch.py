"""The panel says what Slurm says, in words too."""

import pytest
from waiting import wait_for

from dltutorial.course import watch
from dltutorial.launch import job_output, jobs, pocket, workplace

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def test_the_panel_shows_state_place_and_log_and_cancels(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    (tmp_path / "some.sbatch").write_text("#!/bin/bash\necho '<b>at work</b>'\nsleep 1000\n")
    job = jobs.submit(str(tmp_path / "some.sbatch"), env=cluster.env)
    panel = watch.Panel(job)
    wait_for(lambda: panel.update().word == "RUNNING" and job_output.tail(job))
    shown = watch.picture(job, jobs.state(job))
    assert shown.text.startswith(f"job {job.number} RUNNING")
    assert "on n" in shown.text
    assert shown.text.endswith("<b>at work</b>")
    assert "&lt;b&gt;at work" in shown.html
    panel.cancel()
    wait_for(lambda: panel.update().word == "CANCELLED")


def test_a_job_that_waits_says_why(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    (tmp_path / "some.sbatch").write_text("#!/bin/bash\n")
    job = jobs.submit(str(tmp_path / "some.sbatch"), env=cluster.env, options=["--begin=now+1hour"])
    assert "PENDING (BeginTime)" in watch.picture(job, jobs.state(job)).text
    jobs.cancel(job)


def test_a_chapter_has_its_cluster_and_leaves_none(monkeypatch, capfd):
    lab = workplace.place("tests-place", nodes=1)
    assert lab.srun("-N1", "echo", "here").stdout == "here\n"
    lab.close()
    assert pocket.status("tests-place") is None
