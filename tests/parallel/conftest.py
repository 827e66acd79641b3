import contextlib
import runpy
from pathlib import Path

import pytest
from nursing import Nursery


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with contextlib.closing(Nursery(tmp_path_factory.mktemp("nursery"))) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The unit tests' tiny data set."""
    write = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "conftest.py"))["write_tiny_data"]
    return write(tmp_path_factory.mktemp("data") / "tiny")
