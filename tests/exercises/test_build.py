from pathlib import Path

from dltutorial.course import exercises, notebooks

ROOT = Path(__file__).parents[2]


def test_the_exercises_in_git_are_what_the_solutions_make():
    assert exercises.build(ROOT, check=True) == 0


def test_every_solution_has_something_to_solve_and_every_exercise_hides_it():
    for path in notebooks.chapters(ROOT / "solutions"):
        assert "### BEGIN SOLUTION" in path.read_text(encoding="utf-8"), path.name
        blank = (ROOT / "exercises" / path.name).read_text(encoding="utf-8")
        assert "SOLUTION" not in blank, path.name
        assert "# YOUR CODE HERE" in blank, path.name


def test_every_exercise_has_a_solution():
    from_solutions = {path.name for path in notebooks.chapters(ROOT / "solutions")}
    assert {path.name for path in notebooks.chapters(ROOT / "exercises")} == from_solutions
