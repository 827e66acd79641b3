"""Fixtures of the unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_data import write_tiny_data

from dltutorial import machine


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    """A data set that a test may damage."""
    return write_tiny_data(tmp_path / "own")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Train with one thread, because tests run side by side and more threads would wait for each other."""
    import torch

    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "use_cores", lambda n=None: torch.set_num_threads(1) or 1)
        yield
    torch.set_num_threads(before)
