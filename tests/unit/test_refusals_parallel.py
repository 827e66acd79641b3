"""What scaling refuses, each in one clear line. What only ranks can refuse: tests/parallel."""

import pytest

from dltutorial.errors import CourseError
from dltutorial.scaling import clusters, fit

REFUSALS = [
    ("an unknown cluster", lambda: clusters.load("Titan"), CourseError, "no cluster 'Titan'; choose one of: Piz Daint"),
    (
        "two sizes",
        lambda: fit.fit([fit.TimedStep(*step) for step in [(1, 8, 0.1), (1, 16, 0.2), (2, 8, 0.1)]]),
        CourseError,
        "2 numbers of ranks",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_it_is_refused_in_one_line(call, error, words):
    with pytest.raises(error) as refused:
        call()
    (line,) = str(refused.value).splitlines()
    assert words in line
