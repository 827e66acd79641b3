import pytest
from starting import Training


@pytest.fixture
def start(tmp_path, tiny_data):
    """Start a training in this test's folder. A process that still runs at the end of the test is killed."""
    trainings = []

    def start_one(*words, ranks=1):
        trainings.append(Training(tmp_path, tiny_data, *words, ranks=ranks))
        return trainings[-1]

    yield start_one
    for training in trainings:
        for process in training.processes:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, tiny_data):
    """The folder of a run on one rank that nobody stopped."""
    training = Training(tmp_path_factory.mktemp("uninterrupted"), tiny_data)
    assert training.wait() == [0], training.printed()
    return training.folder()
