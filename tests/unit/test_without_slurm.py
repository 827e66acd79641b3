"""Without Slurm everything says so; what a job writes is read as it looks."""

import pytest

from dltutorial.errors import CourseError
from dltutorial.launch import executor, pocket, pocket_daemons


def test_without_slurm_everything_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pocket_daemons, "_SYSTEM", str(tmp_path))
    with pytest.raises(CourseError, match=r"Slurm is not installed here \(no \w+\); .*apt-get install"):
        pocket.up(2)
    job = executor.SlurmJob("1", tmp_path / "out", {})
    for call in (job.state, job.cancel):
        with pytest.raises(CourseError, match=r"^no answer from Slurm \(.*squeue|^no answer from Slurm \(.*scancel"):
            call()
    assert pocket.status() is None
    assert isinstance(executor.start("x"), executor.LocalExecutor)


@pytest.mark.parametrize("nodes", [0, -1, 65, 1.5, True, "2"])
def test_a_pocket_cluster_has_a_whole_number_of_nodes(nodes):
    with pytest.raises(CourseError, match="a pocket cluster has 1 to 64 nodes"):
        pocket.up(nodes)


def test_a_line_that_is_being_written_is_no_record_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path))
    assert executor.progress("r") == []
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "progress.jsonl").write_text('{"step": 1}\n{"st')
    assert executor.progress("r") == [{"step": 1}]
