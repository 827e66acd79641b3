"""Profiles of hypothesis, and folders that examples share.

The profile ``course`` (the default) draws the same examples each time, so a result can be repeated.
``pytest tests/fuzz --hypothesis-profile=long`` draws twenty times as many, and others each time. It prints the seed of
a failure, and ``--hypothesis-seed=N`` repeats it.
"""

import pytest
from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "course", max_examples=100, derandomize=True, database=None, deadline=None, suppress_health_check=slow
)
settings.register_profile("long", settings.get_profile("course"), max_examples=2000, derandomize=False)
settings.load_profile("course")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that each example of a module may fill again."""
    return tmp_path_factory.mktemp("fuzz")
