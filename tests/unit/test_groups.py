import re

import groups
import pytest
import sub_pytest

pytestmark = pytest.mark.ci  # the tests of the tests

WITH = "import groups\n\ndef pytest_configure(config):\n    config.pluginmanager.register(groups)\n"
# Two files of the same group, and tests of no group between them: enough for a second worker to take some.
GROUP = """
import pytest

@pytest.mark.xdist_group("dear")
@pytest.mark.parametrize("n", ["a", "b", "c@d"])
def test_shares(n):
    pass
"""
ALONE = """
import pytest

@pytest.mark.parametrize("n", range(12))
def test_shares_nothing(n):
    pass
"""

COUNTS = {"browser": 7, "chapters": 2, "slurm": 5}
FIRST = "import pytest\n" + "".join(
    f"""
@pytest.mark.xdist_group("{name}")
@pytest.mark.parametrize("n", range({count}))
def test_{name}(n):
    pass
"""
    for name, count in (("many", 9), *COUNTS.items())
)


def who_ran(folder, conftest):
    """Worker → the tests it ran."""
    files = {"test_1": GROUP, "test_2": ALONE, "test_3": GROUP}
    said = sub_pytest.run(folder, conftest, "-v", "-n", "2", "--dist", "loadgroup", **files)
    assert "18 passed" in said
    return {worker: re.findall(rf"^\[{worker}\] .* PASSED (\S+)", said, re.MULTILINE) for worker in ("gw0", "gw1")}


def test_a_group_stays_on_one_worker_across_files_and_others_go_to_both(tmp_path):
    ran = who_ran(tmp_path, WITH)
    with_group = {worker: [test for test in tests if "test_shares[" in test] for worker, tests in ran.items()}
    assert sorted(map(len, with_group.values())) == [0, 6]
    assert all(test.endswith("@dear") for tests in with_group.values() for test in tests)
    assert all(len(tests) > 2 for tests in ran.values())


def test_the_first_groups_run_first_and_side_by_side(tmp_path):
    said = sub_pytest.run(tmp_path, WITH, "-v", "-n", "3", "--dist", "loadgroup", test_1=ALONE, test_2=FIRST)
    assert "35 passed" in said
    ran = [re.findall(rf"^\[{worker}\] .* PASSED (\S+)", said, re.MULTILINE) for worker in ("gw0", "gw1", "gw2")]
    group_of_first = [tests[0].partition("@")[2] for tests in ran]
    assert sorted(group_of_first) == sorted(groups.FIRST)
    for tests, group in zip(ran, group_of_first, strict=True):
        mine = [test.partition("@")[2] for test in tests if "@" in test and not test.endswith("@many")]
        assert mine == [group] * COUNTS[group]


def test_the_tests_of_the_course_have_the_plugin(request):
    assert request.config.pluginmanager.is_registered(groups)
