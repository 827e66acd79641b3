"""One pocket cluster for all tests of this folder, on one worker, and runs small enough for two cores."""

import os

import pytest
from slurm_jobs import TINY, sbatch

from dltutorial.launch import pocket

NODES = 4


@pytest.fixture(scope="session")
def cluster():
    name = f"tests-{os.getpid()}"
    yield pocket.up(NODES, name)
    pocket.down(name)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def train(cluster, runs, monkeypatch):
    """Submit ``train.sbatch`` with a tiny model; runs go to one folder for all tests."""
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(runs))

    def submit(name, *arguments, nodes=2, ranks=2, launcher="torchrun", script="train", options=()):
        env = cluster.env | {"RUN_NAME": name, "DLTUTORIAL_RANKS_PER_NODE": str(ranks)}
        env["DLTUTORIAL_LAUNCHER"] = launcher
        return sbatch(script, *TINY, *arguments, nodes=nodes, env=env, options=options)

    return submit
