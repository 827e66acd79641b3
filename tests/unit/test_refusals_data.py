"""What the data modules refuse: one clear line each. Files that cannot be opened are in test_formats and test_store."""

import pytest

from dltutorial.data import lenses, sampling, surveys
from dltutorial.data.flow import Flow
from dltutorial.errors import DataError, RecipeError

CASES = {
    "no such rank": (lambda: sampling.endless(10, 5, rank=2, world_size=2), RecipeError, "rank 2 of 2"),
    "fewer samples than ranks": (lambda: sampling.endless(10, 2, world_size=3), RecipeError, "shared by 3 ranks"),
    "too large a batch": (lambda: sampling.endless(10, 11), DataError, "batch of 11 needs more than the 10 samples"),
    "an odd grid": (lambda: Flow(31, 64), RecipeError, "take even numbers from 8"),
    "one image": (lambda: lenses.simulate(1), RecipeError, "take at least 2 of 8 × 8"),
    "no training images": (lambda: surveys.lenses(train=0), RecipeError, "each part needs at least 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_is_one_line(case):
    call, error, words = CASES[case]
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
