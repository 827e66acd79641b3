"""A simulated data set has its final name only if it is complete, and a login node simulates none."""

import pytest

from dltutorial.errors import CourseError
from dltutorial.science.building import new_folder


def test_a_data_set_gets_its_name_when_it_is_complete(tmp_path):
    final = tmp_path / "data" / "demo"
    with new_folder(final) as temporary:
        (temporary / "a.txt").write_text("a")
        assert not final.exists()
    assert (final / "a.txt").read_text() == "a"
    assert list(final.parent.iterdir()) == [final]


def test_a_login_node_simulates_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_NODE", "login")
    with pytest.raises(CourseError, match="sbatch"), new_folder(tmp_path / "demo"):
        pytest.fail("the body ran")
