"""Exercises hide their solutions. ``make lint`` checks that they are what the solution notebooks make."""

from pathlib import Path

from dltutorial.course import notebooks

ROOT = Path(__file__).parents[2]


def test_every_solution_has_something_to_solve_and_every_exercise_hides_it():
    solutions = notebooks.chapters(ROOT / "solutions")
    names = [path.name for path in notebooks.chapters(ROOT / "exercises")]
    assert names == [path.name for path in solutions]
    for path in solutions:
        assert "### BEGIN SOLUTION" in path.read_text(encoding="utf-8"), path.name
        blank = (ROOT / "exercises" / path.name).read_text(encoding="utf-8")
        assert "SOLUTION" not in blank, path.name
        assert "# YOUR CODE HERE" in blank, path.name
