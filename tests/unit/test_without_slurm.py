"""Without Slurm everything says so."""

import os

import pytest

from dltutorial.errors import CourseError
from dltutorial.launch import pocket, pocket_daemons


def test_without_slurm_everything_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pocket_daemons, "SYSTEM", str(tmp_path))
    with pytest.raises(CourseError, match=r"Slurm is not installed here \(no \w+\); .*apt-get install"):
        pocket.up(2)
    assert pocket.status() is None
    assert pocket.own("x") is None


def test_a_link_in_a_clusters_place_stays_and_so_does_what_it_leads_to(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    home = pocket._home()
    home.mkdir(parents=True)
    (home / "mine").symlink_to(tmp_path / "thesis")
    os.mkfifo(home / ".lock")  # nor does a pipe without a reader hold it up
    with pytest.raises(CourseError, match="mine is no pocket cluster's and stays as it is"):
        pocket.down("mine")
    assert (home / "mine").is_symlink()
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("loop", ["cache", "cluster"])
def test_a_link_that_goes_round_is_no_cluster(monkeypatch, tmp_path, loop):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    link = tmp_path / "cache" if loop == "cache" else pocket._home() / "mine"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(link.name)
    assert pocket.status("mine") is None
    assert pocket.command("status", 2, "mine") == 1
    if loop == "cache":
        with pytest.raises(CourseError, match=r"cannot hold a pocket cluster \(Too many levels of symbolic links\)"):
            pocket.down("mine")
    else:
        assert pocket.down("mine")
        assert not link.is_symlink()
