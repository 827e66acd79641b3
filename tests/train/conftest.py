import runpy
from pathlib import Path

import pytest
from starting import Training


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The tiny data set of the unit tests."""
    write = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "conftest.py"))["write_tiny_data"]
    return write(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture
def start(tmp_path, data):
    """Start a training in this test's folder; what still runs at the end of the test is killed."""
    trainings = []

    def start_one(*words, ranks=1, data=data):
        trainings.append(Training(tmp_path, data, *words, ranks=ranks))
        return trainings[-1]

    yield start_one
    for training in trainings:
        for process in training.processes:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, data):
    """The folder of a run on one rank that nobody stopped."""
    training = Training(tmp_path_factory.mktemp("uninterrupted"), data)
    assert training.wait() == [0], training.printed()
    return training.folder()
