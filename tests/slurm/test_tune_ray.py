"""``slurm/tune_ray.sbatch`` as it is: a Ray cluster inside a job of the pocket cluster."""

import csv

import pytest
from slurm_jobs import sbatch

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slurm,
    pytest.mark.ray,
    pytest.mark.timeout(1500),
]
LINE = (
    *("--name", "population", "--preset", "smoke", "--dim", "16", "--heads", "1", "--depth", "1", "--steps", "27"),
    *("--global-batch-size", "2", "--knob", "learning_rate=1e-3..3e-2:log", "--trials", "4", "--scheduler", "pbt"),
)


def test_a_population_trains_on_two_nodes(cluster, runs):
    job = sbatch("tune_ray", *LINE, nodes=2, env=cluster.env)
    job.wait(1200)
    output = job.output.read_text()
    with (runs / "population" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["rung"] for row in rows] == ["9"] * 4
    assert "4 trials, 4 to the end, 0 failed" in output
    assert "best: " in output
    assert "Traceback" not in output
