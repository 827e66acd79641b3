"""One pocket cluster for all tests of this folder."""

import os

import pytest

from dltutorial.launch import pocket


@pytest.fixture(scope="session")
def cluster():
    """Two nodes, which end with the tests and leave nothing."""
    name = f"tests-{os.getpid()}"
    cluster = pocket.up(2, name)
    yield cluster
    assert pocket.down(name)
    assert not pocket.processes(cluster.folder)
    assert not cluster.folder.exists()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the runs of all tests of a file."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def _runs_in_one_folder(runs, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(runs))
