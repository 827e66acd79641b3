import numpy as np
import pytest

from dltutorial.scaling import simulator


def test_the_mean_of_the_largest_is_the_known_one():
    assert simulator.expected_max(1) == pytest.approx(0, abs=1e-9)
    assert simulator.expected_max(2) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-6)
    assert simulator.expected_max(3) == pytest.approx(1.5 / np.sqrt(np.pi), abs=1e-6)


@pytest.mark.parametrize("ranks", [2, 17, 400])
def test_the_mean_of_the_largest_equals_monte_carlo(ranks):
    rng = np.random.default_rng(1)
    largest = rng.standard_normal((4000, ranks)).max(1)
    error = 4 * largest.std() / np.sqrt(len(largest))
    assert simulator.expected_max(ranks) == pytest.approx(largest.mean(), abs=error)


def test_the_slowest_of_more_is_slower():
    assert (np.diff(simulator.expected_max(np.arange(1, 3000))) > 0).all()
