"""Profiles of hypothesis, and what the fuzz tests share.

``course`` (the default) draws the same examples each time, from each test's own source: CI can be repeated.
``pytest tests/fuzz --hypothesis-profile=long`` draws twenty times as many, others each time, and tells the seed of a
failure; ``--hypothesis-seed=N`` repeats it. ``first`` shows a failing
example as it came, where to look for a smaller one takes long.
"""

import contextlib
import sys
from pathlib import Path

import pytest
from forking import Forking
from hypothesis import HealthCheck, Phase, settings

sys.path += [str(Path(__file__).parents[1] / other) for other in ("unit", "parallel")]  # their helpers

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "course", max_examples=100, derandomize=True, database=None, deadline=None, suppress_health_check=slow
)
settings.register_profile("long", settings.get_profile("course"), max_examples=2000, derandomize=False)
settings.register_profile("first", settings.get_profile("course"), phases=[Phase.generate])
settings.load_profile("course")


@pytest.fixture(scope="session")
def forking():
    """Does things to hostile files in a process of its own each."""
    with contextlib.closing(Forking()) as forking:
        yield forking


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that every example of a module may fill anew."""
    return tmp_path_factory.mktemp("fuzz")


def pytest_collection_modifyitems(items):
    """A busy machine gets time, and as many examples as are asked for."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(9 * settings().max_examples))
