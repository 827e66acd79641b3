"""``tune.sbatch`` and ``tune_ray.sbatch`` run the scripts of chapter 20 on the pocket cluster."""

import pytest
from slurm_jobs import sbatch

from dltutorial import config
from dltutorial.course import scripts
from dltutorial.data import weather

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1500)]
SMALL = ("--trials", "4", "--epochs", "3", "--vit", "16", "16", "1", "2")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the scripts of the chapter."""
    monkeypatch.chdir(tmp_path)
    scripts.take("vit.py", "pairs.py", "train.py", "tune.py", "tune_ray.py")
    return tmp_path


def test_an_array_of_workers_tunes_one_study(cluster, folder):
    data = weather.ensure(config.preset("smoke"))
    line = (str(folder / "tune.py"), str(data), "--study", str(folder / "study.log"), *SMALL)
    job = sbatch("tune", *line, env=cluster.env, options=["--array=0-1"])
    job.wait_until_gone()
    outputs = [file.read_text() for file in job.output.parent.glob(f"tune-{job.number}_*.out")]
    assert len(outputs) == 2
    for output in outputs:
        assert "best: " in output


@pytest.mark.nightly
@pytest.mark.ray
def test_a_job_with_ray_on_two_nodes(cluster, folder):
    data = weather.ensure(config.preset("smoke"))
    line = (str(folder / "tune_ray.py"), str(data), "--scheduler", "pbt", "--out", str(folder / "study"), *SMALL)
    job = sbatch("tune_ray", *line, nodes=2, env=cluster.env)
    job.wait(1200)
    assert "best: " in job.output.read_text()
