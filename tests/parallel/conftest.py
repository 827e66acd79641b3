import contextlib
import runpy
from pathlib import Path

import pytest
import torch
from nursing import Nursery

from dltutorial import machine


@pytest.fixture(scope="module", autouse=True)
def threads_as_before():
    """What ranks do is done in this process, too, where ``mates.use_one_thread`` would stay for other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "use_cores", machine.use_cores)
        before = torch.get_num_threads()
        yield
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with contextlib.closing(Nursery(tmp_path_factory.mktemp("nursery"))) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The unit tests' tiny data set."""
    write = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "conftest.py"))["write_tiny_data"]
    return write(tmp_path_factory.mktemp("data") / "tiny")
