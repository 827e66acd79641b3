import pytest
import sub_pytest

pytestmark = pytest.mark.ci  # the tests of the tests

CONFTEST = """
from measurements import Tally

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tally())
"""
CHAPTERS = """
import pytest
from measurements import FOUND, OTHERWISE

@pytest.mark.parametrize("n", range(10))
def test_chapter(n, record_property):
    record_property(FOUND, 10)
    record_property(OTHERWISE, [f"it is quicker ({n})"] * (n < N) + ["it is leaner"] * (n == 0))
"""


@pytest.mark.parametrize(
    ("n", "judged", "workers"), [(9, "at most 10% may be", []), (10, "more than 10%: FAILED", ["-n", "2"])]
)
def test_more_than_a_tenth_of_all_measurements_fails_the_session(tmp_path, workers, n, judged):
    said, status = sub_pytest.end(tmp_path, CONFTEST, *workers, test_some=CHAPTERS.replace("N)", f"{n})"))
    assert status == (n > 9)
    assert "10 passed" in said
    assert f"{n + 1} of 100 measurements are otherwise; {judged}" in said
    assert "it is quicker (1)" in said


def test_a_few_chapters_may_have_as_many_as_fifty_measurements_would(tmp_path):
    said, status = sub_pytest.end(tmp_path, CONFTEST, "-k", "[0] or [1] or [2]", test_some=CHAPTERS.replace("N)", "4)"))
    assert status == 0
    assert "4 of 30 measurements are otherwise; at most 10% may be" in said


ALONE = """
from measurements import ALONE, BESIDE, FOUND, OTHERWISE

def test_chapters(record_property):
    record_property(FOUND, 20)
    record_property(BESIDE, ["it is quicker"] * 6)

def test_again(record_property):
    record_property(ALONE, True)
    record_property(OTHERWISE, ["it is quicker"])
"""


@pytest.mark.parametrize(("chosen", "n", "status"), [("chapters", 6, 1), ("chapters or again", 1, 0)])
def test_what_was_otherwise_beside_other_tests_counts_unless_it_was_tried_again_alone(tmp_path, chosen, n, status):
    said, ended = sub_pytest.end(tmp_path, CONFTEST, "-k", chosen, test_some=ALONE)
    assert ended == status
    assert f"{n} of 20 measurements are otherwise" in said
