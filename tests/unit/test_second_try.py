import re

import pytest
import sub_pytest

pytestmark = pytest.mark.ci  # the tests of the tests

CONFTEST = """
from pathlib import Path
from second_try import SecondTry, Turns

def pytest_configure(config):
    config.addinivalue_line("markers", "timed: measures")
    config.pluginmanager.register(SecondTry(Turns(Path(__file__).parent / "turns")))
"""
HELD_AT_THE_SECOND_TRY = """
import pytest
TRIES = []

@pytest.fixture(scope="module")
def measured():
    TRIES.append(1)
    return len(TRIES)

def test_spoiled_once(measured):
    assert measured == 2, "the machine was busy"

def test_a_spoiled_fixture():
    pass

def test_that_measures_nothing():
    TRIES.append(1)
    assert len(TRIES) > 3, "not tried again"
"""
NEVER = """
import pytest

def test_wrong():
    assert 1 == 2
"""
# The first stays until the other has failed, and sees whether that one's second try begins beside it.
SIDE_BY_SIDE = """
import time
from pathlib import Path
import pytest
HERE = Path(__file__).parent

@pytest.mark.xdist_group("a")
def test_long():
    until = time.monotonic() + 60
    while not (HERE / "failed").exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)
    assert (HERE / "failed").exists() and not (HERE / "again").exists()

@pytest.mark.xdist_group("b")
def test_spoiled():
    if (HERE / "failed").exists():
        (HERE / "again").touch()
    else:
        (HERE / "failed").touch()
        raise AssertionError("it was spoiled")
"""


@pytest.fixture
def tests(tmp_path):
    """Run pytest over tests of the given text; returns its last words."""

    def run(text, *options):
        return sub_pytest.run(tmp_path, CONFTEST, *options, test_some=text)

    return run


def test_only_a_timed_test_gets_a_second_try_with_new_fixtures_and_the_summary_says_so(tests):
    said = tests(HELD_AT_THE_SECOND_TRY)
    assert "1 failed, 2 passed" in said
    assert re.search(r"= needed a second try, alone =+\n.*::test_spoiled_once \(passed\), at first: .*busy", said)
    assert "FAILED test_some.py::test_that_measures_nothing" in said


def test_what_fails_twice_has_failed(tests):
    said = tests(NEVER)
    assert "1 failed in" in said
    assert "::test_wrong (failed), at first: assert 1 == 2" in said


def test_no_test_of_another_worker_is_beside_the_second_try(tests):
    said = tests(SIDE_BY_SIDE, "-n", "2", "--dist", "loadgroup")
    assert "2 passed" in said
    assert re.search(r"::test_spoiled\S* \(passed\), at first: AssertionError: it was spoiled", said)
