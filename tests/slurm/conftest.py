"""One pocket cluster for all tests of this folder, and runs small enough for two cores."""

import os

import pytest

from dltutorial.parallel import jobs, pocket

NODES = 3
TINY = ("--preset", "smoke", "--dim", "32", "--depth", "1", "--eval-every", "0", "--log-every", "1")


def pytest_collection_modifyitems(items):
    """All on one worker: they share the cluster, and the cores."""
    for item in items:
        if "tests/slurm/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("slurm"))


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

    def submit(name, *arguments, nodes=2, ranks=2, script="train", options=()):
        env = cluster.env | {"RUN_NAME": name, "DLTUTORIAL_RANKS_PER_NODE": str(ranks)}
        return jobs.submit(script, *TINY, *arguments, nodes=nodes, site="pocket", env=env, options=options)

    return submit
