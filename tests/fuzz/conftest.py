"""The settings of hypothesis, and a folder that examples share. The same examples are drawn in each run."""

import pytest
from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "course", max_examples=100, derandomize=True, database=None, deadline=None, suppress_health_check=slow
)
settings.load_profile("course")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that each example of a module may fill again."""
    return tmp_path_factory.mktemp("fuzz")
