import numpy as np
import pytest

from dltutorial.scaling import simulator


def test_the_mean_of_the_largest_is_the_known_one():
    assert simulator.expected_max(1) == pytest.approx(0, abs=1e-9)
    assert simulator.expected_max(2) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-6)
    assert simulator.expected_max(3) == pytest.approx(1.5 / np.sqrt(np.pi), abs=1e-6)
