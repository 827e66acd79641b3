import datetime
from pathlib import Path

from dltutorial.course import exercises, notebooks

ROOT = Path(__file__).parents[2]


def test_the_committed_exercises_are_in_step_with_the_solutions():
    assert exercises.build(ROOT, check=True) == 0


def test_every_solution_has_something_to_solve_and_every_exercise_hides_it():
    for path in notebooks.chapters(ROOT / "solutions"):
        assert "### BEGIN SOLUTION" in path.read_text(encoding="utf-8"), path.name
        blank = (ROOT / "exercises" / path.name).read_text(encoding="utf-8")
        assert "SOLUTION" not in blank, path.name
        assert "# YOUR CODE HERE" in blank, path.name


def test_every_committed_exercise_has_a_solution():
    made = {path.name for path in notebooks.chapters(ROOT / "solutions")}
    there = {path.name for path in notebooks.chapters(ROOT / "exercises")}
    assert {name for name in there if not name.endswith(".new.ipynb")} == made


def test_two_copies_of_one_instant_are_both_kept(tmp_path, monkeypatch):
    now = datetime.datetime(2026, 1, 1)  # a clock that stands
    monkeypatch.setattr(datetime, "datetime", type("Standing", (), {"now": staticmethod(lambda: now)}))
    (file := tmp_path / "00_a.ipynb").write_text("first")
    one = exercises.keep(file)
    file.write_text("second")
    assert [kept.read_text() for kept in (one, exercises.keep(file))] == ["first", "second"]
