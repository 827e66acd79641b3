from types import SimpleNamespace

from dltutorial import machine
from dltutorial.config import PRESETS
from dltutorial.convergence import attempt, predict, recipe
from dltutorial.convergence.recipe import SolutionTask
from dltutorial.course import benches
from dltutorial.course.bench import table


def test_every_recipe_has_a_row_with_prediction_beside_measurement(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    task = SolutionTask(0.8, train=2100, valid=200, widths=(8,))
    monkeypatch.setattr(recipe, "task_for", lambda preset: task)
    monkeypatch.setattr(predict, "RATES", {16: (2**-4,), 64: (2**-3,), 512: (2**-2,)})
    monkeypatch.setattr(predict, "BATCHES", (16, 64))
    monkeypatch.setattr(machine, "cores", lambda: 1)
    rows = list(benches.solution(PRESETS["smoke"], 1))
    assert len({row.what for row in rows}) == len(rows) == 6
    assert all(row.predicted for row in rows if row.unit == "s")
    assert "predicted" in str(table(rows))


def test_a_recipe_that_missed_the_target_has_no_time(monkeypatch):
    def attempts(recipe, task, seeds):
        reached = recipe.loader != "naive" or seeds == [0]
        return [attempt.Attempt(0, reached, False, 10, 2.0 + seeds[0], 0.0, 0.0, 0.0, 1, ((10, 2.0, 0.9),))]

    monkeypatch.setattr(attempt, "attempts", attempts)
    here = SimpleNamespace(rate=lambda batch: 0.1)
    monkeypatch.setattr(predict, "measure", lambda *args, **options: here)
    monkeypatch.setattr(predict, "time_to_solution", lambda recipe, here: {"staging": 1.0})
    rows = {row.what: row for row in benches.solution(PRESETS["smoke"], 2)}
    missed, made = rows["naive, batch 256, fp32, ranks 1: not reached"], rows["lean, batch 256, fp32, ranks 1"]
    assert (missed.samples, missed.unit, missed.predicted) == ((1.0,), "of 2 seeds", None)
    assert (made.samples, made.unit, made.predicted) == ((2.0, 3.0), "s", 1.0)
