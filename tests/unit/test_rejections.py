"""Slurm's own words come first, then the setting to look at: one line."""

import pytest

from dltutorial.errors import CourseError
from dltutorial.launch import job_output, jobs, pocket, rejections, rendezvous, slurm, workplace


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "Slurm says: Invalid account or account/partition combination specified; set SBATCH_ACCOUNT",
        ),
        (
            "sbatch: error: invalid partition specified: gpu\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "Slurm says: Invalid partition name specified; set SBATCH_PARTITION",
        ),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "set SBATCH_QOS"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", "fewer nodes"),
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some)",
            "ask for less time",
        ),
        (
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
            "user's size and/or time limits)",
            "your account's limits",
        ),
        ("squeue: error: Munge encode failed: Failed to connect", "munge, which signs every message, is not running"),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "controller",
        ),
        ("squeue: error: Zero Bytes were transmitted or received", "the controller does not answer"),
        ("sbatch: fatal: Could not establish a configuration source", "no cluster is configured here"),
        ("bash: line 1: sbatch: command not found", "Slurm is not installed here (no sbatch)"),
        ("sbatch: error: The site does not like you", "Slurm says: The site does not like you; "),
        ("", "Slurm says: Slurm gives no reason"),
        ("slurm/sites/x.sh: line 7: SBATCH_ACCOUNT: export it first", "SBATCH_ACCOUNT: export it first"),
    ],
)
def test_slurms_words_and_the_setting_to_look_at(said, told):
    line = rejections.explained(said)
    assert told in line
    assert "\n" not in line


def test_without_slurm_everything_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pocket.daemons, "_SYSTEM", str(tmp_path))
    job = jobs.Job("1", tmp_path / "out")
    for call in (lambda: pocket.up(2), lambda: jobs.state(job), lambda: jobs.cancel(job)):
        with pytest.raises(CourseError, match=r"Slurm is not installed here \(no \w+\); .*apt-get install"):
            call()
    assert pocket.status() is None
    assert isinstance(workplace.place("x"), workplace.Here)


@pytest.mark.parametrize("nodes", [0, -1, 65, 1.5, True, "2"])
def test_a_pocket_cluster_has_a_whole_number_of_nodes(nodes):
    with pytest.raises(CourseError, match="a pocket cluster has 1 to 64 nodes"):
        pocket.up(nodes)


def test_a_script_or_site_that_is_not_there_lists_those_that_are(tmp_path):
    with pytest.raises(CourseError, match="there is: notebook, profile, scaling, train"):
        jobs.submit("trian")
    with pytest.raises(CourseError, match=r"there is: frontier, .*, pocket"):
        jobs.submit("train", site="moon")


def test_munge_that_is_not_there_is_told_at_once(tmp_path):
    (tmp_path / "slurm.conf").write_text(f"AuthType=auth/munge\nAuthInfo=socket={tmp_path}/no.socket,cred_expire=5\n")
    told = rejections.munge_problem({"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert "munge, which signs every message, is not running" in told
    (tmp_path / "slurm.conf").write_text("AuthType=auth/slurm\n")
    assert rejections.munge_problem({"SLURM_CONF": str(tmp_path / "slurm.conf")}) is None
    assert rejections.munge_problem({"SLURM_CONF": str(tmp_path / "nowhere")}) is None


def test_munge_that_goes_while_slurm_tries_again_and_again_is_told(tmp_path, monkeypatch):
    (tmp_path / "slurm.conf").write_text(f"AuthType=auth/munge\nAuthInfo=socket={tmp_path}/no.socket\n")
    monkeypatch.setattr(slurm, "_ANSWER_S", 0.1)
    with pytest.raises(CourseError, match="munge, which signs every message, is not running"):
        slurm.run(["sleep", "60"], {"SLURM_CONF": str(tmp_path / "slurm.conf")})
    with pytest.raises(CourseError, match="no answer"):
        slurm.run(["sleep", "60"], {"SLURM_CONF": str(tmp_path / "nowhere")})


def test_the_log_is_read_as_it_looks(tmp_path):
    (tmp_path / "out").write_text("one\n\nbar 1\rbar 2\rbar 3\n  last")
    job = jobs.Job("1", tmp_path / "out")
    assert job_output.tail(job) == ["one", "bar 3", "  last"]
    assert job_output.tail(job, 1) == ["  last"]
    assert job_output.tail(jobs.Job("1", tmp_path / "none")) == []


def test_a_line_that_is_being_written_is_no_record_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    assert job_output.progress("r") == []
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "progress.jsonl").write_text('{"step": 1}\n{"st')
    assert job_output.progress("r") == [{"step": 1}]


def test_a_rank_that_joins_nobody_gives_up(capfd):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    attempt = rendezvous.join("127.0.0.1", port, patience_s=1)
    assert attempt.ended != "joined"
    assert str(port) in attempt.said
    assert capfd.readouterr().err == ""
