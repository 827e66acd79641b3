"""The scripts of ``slurm/`` on the pocket cluster."""

import csv
import urllib.error
import urllib.request

import pytest
from slurm_jobs import losses, sbatch
from waiting import wait_for

from dltutorial import cli
from dltutorial.launch import pocket
from dltutorial.profile import trace

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
SMALL = ("--preset", "smoke", "--global-batch-size", "4", "--steps", "30")


@pytest.fixture
def one_rank_per_node(cluster):
    """The environment of a job with one rank on each node."""
    return cluster.env | {"DLTUTORIAL_RANKS_PER_NODE": "1"}


def test_the_cluster_is_up_and_its_command_prints_what_a_shell_evaluates(cluster, capsys, monkeypatch):
    assert pocket.status(cluster.name) == cluster
    assert set(pocket.states(cluster)) == {"n0", "n1"}
    monkeypatch.setattr(pocket, "status", lambda: cluster)
    assert cli.main(["pocket", "status"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"export SLURM_CONF={cluster.folder}/slurm.conf\n"
    assert "n0 " in printed.err


def test_a_job_that_is_stopped_by_the_signal_starts_again_and_has_the_losses_of_one_that_is_not(one_rank_per_node):
    undisturbed = sbatch("train", *SMALL, nodes=2, env=one_rank_per_node)
    assert undisturbed.wait() == 0
    assert "2 nodes: n[0-1]" in undisturbed.output.read_text()
    stopped = sbatch("train", *SMALL, nodes=2, env=one_rank_per_node)
    stopped.wait_for_output("run: ")
    stopped.signal_before_time_limit()
    assert stopped.wait() == 1
    expected = losses(f"train-{undisturbed.number}")
    assert list(expected) == list(range(1, 31))
    assert losses(f"train-{stopped.number}") == expected


def test_scaling_writes_a_row_for_each_number_of_nodes(cluster, runs):
    options = ("--preset", "smoke", "--steps", "20")
    env = cluster.env | {"BATCH": "2"}  # with the two ranks per node that the site's file sets
    job = sbatch("scaling", *options, nodes=2, env=env, options=["--array=1,2"])
    job.wait_until_gone()
    rows = [next(csv.reader([(runs / f"scaling-{job.number}-{ranks}.csv").read_text()])) for ranks in (2, 4)]
    assert [row[:2] for row in rows] == [["2", "2"], ["4", "2"]]
    assert all(float(row[2]) > 0 for row in rows)


def test_profile_records_five_steps(cluster, runs):
    job = sbatch("profile", "--preset", "smoke", "--global-batch-size", "4", nodes=2, env=cluster.env)
    job.wait()
    assert len(trace.read(runs / "profiles" / f"profile-{job.number}.json.gz").steps) == 5


def status_of(address, **headers):
    """Return the status of a server's answer, or None if no server listens yet."""
    try:
        return urllib.request.urlopen(urllib.request.Request(address, headers=headers)).status
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return None


def test_notebook_starts_a_server_that_asks_for_the_token(cluster, runs):
    job = sbatch("notebook", env=cluster.env)
    address = f"http://127.0.0.1:{20000 + int(job.number) % 10000}/api/contents"
    assert wait_for(lambda: status_of(address)) == 403
    token_file = runs / f"notebook-{job.number}.token"
    token = token_file.read_text().strip()
    assert token_file.stat().st_mode & 0o077 == 0
    assert token not in job.output.read_text()
    assert status_of(address, Authorization=f"token {token}") == 200
    job.cancel()
    job.wait_until_gone()
