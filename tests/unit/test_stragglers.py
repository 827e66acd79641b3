import numpy as np
import pytest

from dltutorial.scaling import simulator


def test_the_mean_of_the_largest_is_the_known_one():
    assert simulator.expected_max(1) == pytest.approx(0, abs=1e-9)
    assert simulator.expected_max(2) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-6)
    assert simulator.expected_max(3) == pytest.approx(1.5 / np.sqrt(np.pi), abs=1e-6)
    harmonic = np.sum(1 / np.arange(1, 1001))
    assert simulator.expected_max(1000, "exponential") == pytest.approx(harmonic - 1, rel=1e-6)
    assert simulator.expected_max([1, 5], "exponential") == pytest.approx([0, 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5])


@pytest.mark.parametrize("ranks", [2, 17, 400])
@pytest.mark.parametrize("shape", simulator.SHAPES)
def test_the_mean_of_the_largest_equals_monte_carlo(ranks, shape):
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((4000, ranks)) if shape == "normal" else rng.exponential(size=(4000, ranks)) - 1
    largest = drawn.max(1)
    error = 4 * largest.std() / np.sqrt(len(largest))
    assert simulator.expected_max(ranks, shape) == pytest.approx(largest.mean(), abs=error)


def test_the_slowest_of_more_is_slower():
    for shape in simulator.SHAPES:
        assert (np.diff(simulator.expected_max(np.arange(1, 3000), shape)) > 0).all()
