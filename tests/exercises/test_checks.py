"""Every check is checked: the solution passes, the blank does not, and a wrong answer gets its own hint.

An exercise ``NAME`` is found by the cell that calls ``check.NAME(...)`` in a solution notebook. Its wrong answers are
``WRONG = [(label, source, hint or None), ...]`` in ``wrong/NAME.py``; its other right answers are
``RIGHT_TOO = [(label, source), ...]`` there. ``make test`` tries two wrong answers of each exercise, CI tries six more,
and the nightly tests try the others.
"""

import ast
import dataclasses
import functools
import importlib
import runpy
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from dltutorial.course import check, notebooks, scripts

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "tests" / "exercises" / "wrong"
NAMES = sorted(dir(check))
NONSENSE = {
    "returns nothing": lambda *args, **options: None,
    "returns a word": lambda *args, **options: "42",
}


def marks(name, position):
    """The marker of the wrong answer at this position. The capstone's start ranks many times, so fewer are tried."""
    in_make_test, in_ci = (0, 2) if name == "capstone" else (2, 6)
    if position < in_make_test:
        return []
    if position < in_ci:
        return [pytest.mark.ci]
    return [pytest.mark.nightly]


@functools.cache
def answers(name):
    return runpy.run_path(str(WRONG / f"{name}.py"))


def new_hints_first(wrong):
    """The first answer with each hint, then all others, so that the first few answers test different hints."""
    hints = {None}
    new = []
    others = []
    for label, source, hint in wrong:
        (others if hint in hints else new).append((label, source, hint))
        hints.add(hint)
    return new + others


def wrong_answers():
    for name in NAMES:
        for position, (label, source, hint) in enumerate(new_hints_first(answers(name)["WRONG"])):
            first_case = answers(name).get("FIRST_CASE", {}).get(label)
            yield pytest.param(name, source, hint, first_case, id=f"{name}: {label}", marks=marks(name, position))


def other_right_answers():
    for name in NAMES:
        for label, source in answers(name).get("RIGHT_TOO", ()):
            yield pytest.param(name, source, id=f"{name}: {label}")


def code_cells(path):
    for cell in notebooks.read(path)["cells"]:
        if cell["cell_type"] == "code":
            yield TransformerManager().transform_cell("".join(cell["source"]))


def called_exercise(node):
    """``(name, argument)`` of a call ``check.NAME(argument)``, else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "check" and node.args:
            return node.func.attr, node.args[0]
    return None


@functools.cache
def calls(folder):
    """For each exercise: the notebook that checks it, its code cells, and what it gives to the check."""
    found = {}
    for path in notebooks.chapters(ROOT / folder):
        cells = list(code_cells(path))
        for node in ast.walk(ast.parse("\n".join(cells))):
            call = called_exercise(node)
            if call:
                name, argument = call
                found[name] = (path, cells, argument)
    return found


def defines(statement):
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
        return True
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)


def answer(folder, name, instead=""):
    """What a learner gives to ``check.NAME``, made from the notebook's imports, constants, functions and files.

    ``instead`` is source that runs after the cells and replaces a part of the answer.
    """
    path, cells, argument = calls(folder)[name]
    for file, text in scripts.written(path).items():
        Path(file).write_text(text, encoding="utf-8")
    space = {"__name__": "__main__"}
    for cell in cells:
        tree = ast.parse(cell)
        tree.body = [statement for statement in tree.body if defines(statement)]
        exec(compile(tree, f"<{path.name}>", "exec"), space)
    exec(compile(instead, "<wrong answer>", "exec"), space)
    return eval(compile(ast.Expression(argument), f"<{path.name}>", "eval"), space)


def module(name):
    return importlib.import_module(f"dltutorial.course.checks.{name}")


def runs_on_ranks(name):
    return hasattr(module(name), "run_on_ranks")


def limited_modules(name):
    """The modules that limit the time of an answer: the check itself, or the harness that starts its ranks."""
    return [limited for limited in (module(name), module("rank_harness")) if hasattr(limited, "PATIENCE_S")]


def examine(name, source, expected, exercise=None):
    """The outcome for a solution in which ``source`` replaces a part.

    A check that measures or limits times (``CLEARLY``, ``PATIENCE_S``) is called up to three times for a right answer,
    until it passes, because other programs on this machine can disturb it. A wrong answer has one call.
    """
    exercise = exercise or getattr(check, name)
    measures = runs_on_ranks(name) or hasattr(module(name), "PATIENCE_S") or hasattr(module(name), "CLEARLY")
    for _ in range(3 if measures and expected is passes else 1):
        outcome = exercise.examine(answer("solutions", name, instead=source))
        if expected(outcome):
            break
    return outcome


def passes(outcome):
    return outcome.status == "passed"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Files that a notebook writes lie in a folder of their own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def impatient(name):
    """The check gives up soon on an answer that waits for ever. Right answers have the time that learners have."""
    with pytest.MonkeyPatch.context() as patch:
        share = 2 if name == "capstone" else 4
        for limited in limited_modules(name):
            patch.setattr(limited, "PATIENCE_S", limited.PATIENCE_S / share)
        yield patch


def test_every_exercise_is_asked_in_a_notebook_and_every_notebook_asks_an_exercise():
    assert set(calls("solutions")) == set(calls("exercises")) == set(NAMES) != set()


def test_every_exercise_has_its_own_name_chapter_cases_hints_and_wrong_answers():
    for name in NAMES:
        exercise = getattr(check, name)
        assert exercise.name == name
        assert len(exercise.chapter) == 2 or exercise.chapter == name
        assert len(exercise.cases) >= 2
        assert len(exercise.hints) >= 1
        labels = [label for label, _, _ in answers(name)["WRONG"]]
        assert len(set(labels)) == len(labels) >= 5
        assert answers(name).get("FIRST_CASE", {}).keys() <= set(labels)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name, 0)) for name in NAMES])
def test_the_solution_passes(name):
    outcome = examine(name, "", passes)
    assert passes(outcome), outcome


@pytest.mark.ci
@pytest.mark.parametrize(("name", "source"), list(other_right_answers()))
def test_another_right_answer_passes(name, source):
    outcome = examine(name, source, passes)
    assert passes(outcome), outcome


@pytest.mark.parametrize("name", NAMES)
def test_the_blank_is_not_attempted_and_does_not_raise(name, capsys):
    assert getattr(check, name)(answer("exercises", name)) is False
    assert "not attempted yet" in capsys.readouterr().out


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fn", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_rejected_and_does_not_raise(name, fn, impatient):
    assert getattr(check, name).examine(fn).status == "wrong"


@pytest.mark.parametrize(("name", "source", "hint", "first_case"), list(wrong_answers()))
def test_a_wrong_answer_is_rejected_with_its_own_hint(name, source, hint, first_case, impatient):
    exercise = getattr(check, name)
    if first_case:  # the cases before it would pass, and each takes long
        names = [case.__name__ for case in exercise.cases]
        exercise = dataclasses.replace(exercise, cases=exercise.cases[names.index(first_case) :])

    def rejected(outcome):
        return outcome.status == "wrong" and (hint or "") in outcome.hint

    outcome = examine(name, source, rejected, exercise)
    if not rejected(outcome):  # on a busy machine the short time limit may have ended an answer that does not wait
        impatient.undo()
        outcome = examine(name, source, rejected, exercise)
    assert rejected(outcome), outcome


FAILING_BACKWARD = """
class Gathered(Gathered):
    @staticmethod
    def backward(ctx, slope):
        raise WHAT
"""


def examine_failing_backward(error):
    """Return the outcome for a right forward pass, whose backward pass raises this error."""
    source = FAILING_BACKWARD.replace("WHAT", error)
    return check.gathered.examine(answer("solutions", "gathered", instead=source))


@pytest.mark.ci
def test_an_error_in_backward_is_shown_with_its_line_after_the_forward_pass_has_passed():
    outcome = examine_failing_backward("ValueError('not this way')")
    assert (outcome.status, len(outcome.passed)) == ("wrong", 1)
    assert "ValueError on rank" in outcome.got
    assert "not this way" in outcome.got
    assert outcome.trace.endswith("in backward")  # a string has no lines to be shown


@pytest.mark.ci
def test_a_backward_pass_that_is_still_blank_leaves_the_forward_pass_its_tick():
    outcome = examine_failing_backward("NotImplementedError")
    assert (outcome.status, len(outcome.passed)) == ("not attempted", 1)
