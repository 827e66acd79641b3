import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def threads_as_before():
    """Some tests do in this process what ranks do, with one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
