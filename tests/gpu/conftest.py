"""What tests on GPUs share."""

import cloudpickle
import pytest


@pytest.fixture
def send_whole(request):
    """Functions of the test's own file go to the ranks by value."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
