import runpy
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def threads_as_before():
    """Some tests do in this process what ranks do, with one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The unit tests' tiny data set."""
    write = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "conftest.py"))["write_tiny_data"]
    return write(tmp_path_factory.mktemp("data") / "tiny")
