"""A simulated data set has its final name only if it is complete."""

import pytest

from dltutorial.errors import CourseError, DataError
from dltutorial.science.building import new_folder


def test_a_data_set_gets_its_name_when_it_is_complete(tmp_path):
    final = tmp_path / "data" / "demo"
    with new_folder(final) as temporary:
        (temporary / "a.txt").write_text("a")
        assert not final.exists()
    assert (final / "a.txt").read_text() == "a"
    assert list(final.parent.iterdir()) == [final]


def test_an_interrupted_data_set_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "demo") as temporary:
        (temporary / "a.txt").write_text("a")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(tmp_path):
    with pytest.raises(DataError, match="make room") as refused, new_folder(tmp_path / "demo"):
        raise OSError(28, "No space left on device")
    assert "\n" not in str(refused.value)


def test_a_login_node_simulates_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_NODE", "login")
    with pytest.raises(CourseError, match="sbatch"), new_folder(tmp_path / "demo"):
        pytest.fail("the body ran")
