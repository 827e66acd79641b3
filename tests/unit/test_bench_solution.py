import dataclasses

from dltutorial import machine
from dltutorial.config import PRESETS
from dltutorial.convergence import learning, measured
from dltutorial.convergence.attempt import Attempt
from dltutorial.convergence.recipe import SolutionRecipe, Task
from dltutorial.course import bench_solution
from dltutorial.course.bench_rows import Options, table


def of(seconds, reached=True):
    return Attempt(0, reached, False, 10, seconds, 0.0, 0.0, 0.0, 1, ((10, seconds, 0.9),))


def test_a_recipe_that_missed_the_target_has_no_time():
    found = bench_solution.row(SolutionRecipe(), 1.0, [of(2.0), of(9.0, reached=False)])
    assert "not reached" in found.what
    assert (found.samples, found.unit, found.predicted) == ((1.0,), "of 2 seeds", None)
    found = bench_solution.row(SolutionRecipe(), 1.0, [of(2.0), of(4.0)])
    assert (found.samples, found.unit, found.predicted) == ((2.0, 4.0), "s", 1.0)


def test_every_recipe_has_a_row_with_prediction_beside_measurement(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    monkeypatch.setattr(bench_solution, "task_for", lambda preset: Task(0.8, train=2100, valid=200, widths=(8,)))
    monkeypatch.setattr(learning, "RATES", {"sgd": {16: (2**-4,), 64: (2**-3,), 512: (2**-2,)}})
    monkeypatch.setattr(measured, "BATCHES", (16, 64))
    monkeypatch.setattr(machine, "cores", lambda: 1)
    rows = list(bench_solution.solution(dataclasses.replace(Options(PRESETS["smoke"]), repeats=1)))
    assert len({row.what for row in rows}) == len(rows) == 6
    assert all(row.predicted for row in rows if row.unit == "s")
    assert "predicted" in str(table(rows))
