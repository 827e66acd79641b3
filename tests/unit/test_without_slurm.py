"""Without Slurm everything says so."""

import pytest

from dltutorial.errors import CourseError
from dltutorial.launch import pocket


def test_without_slurm_everything_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pocket, "SYSTEM", str(tmp_path))
    with pytest.raises(CourseError, match=r"Slurm is not installed here \(no \w+\); .*apt-get install"):
        pocket.up(2)
    assert pocket.status() is None
    assert pocket.own("x") is None
