"""Every check is itself checked: the solution passes, the blank does not, wrong answers are told what is wrong.

An exercise ``NAME`` is found by the cell that calls ``check.NAME(...)`` in a solution notebook; its wrong answers are
``WRONG = [(label, source, hint or None), ...]`` in ``wrong/NAME.py``.
"""

import ast
import dataclasses
import functools
import importlib
import runpy
import sys
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from dltutorial.course import check, notebooks, scripts

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "tests" / "exercises" / "wrong"
NAMES = sorted(dir(check))
UNIVERSAL = {
    "returns nothing": lambda *args, **options: None,
    "returns a word": lambda *args, **options: "42",
    "returns its type": lambda *args, **options: object,
    "leaves Python": lambda *args, **options: sys.exit(0),
    "takes no arguments": lambda: 0.0,
}

QUICK = 2  # wrong answers to each exercise that make test tries; make test-all tries the rest
FEWER = {"capstone": 0}  # each starts two ranks, several times


def checks_of(name):
    """The module with the checks of an exercise; PATIENCE_S in it is how long an answer may take."""
    return importlib.import_module(f"dltutorial.course.checks.{name}")


def marks(name):
    """A check that waits, or compares times (CLEARLY: by how much), can be spoiled by other programs."""
    checks = checks_of(name)
    return [pytest.mark.timed] * (hasattr(checks, "PATIENCE_S") or hasattr(checks, "CLEARLY"))


def wrong_answers():
    for file in sorted(WRONG.glob("*.py")):
        for number, (label, source, hint) in enumerate(runpy.run_path(str(file))["WRONG"]):
            more = [pytest.mark.ci] * (number >= FEWER.get(file.stem, QUICK))
            yield pytest.param(file.stem, source, hint, id=f"{file.stem}: {label}", marks=marks(file.stem) + more)


@functools.cache
def first_cases(name):
    return runpy.run_path(str(WRONG / f"{name}.py")).get("FIRST_CASE", {})


def first_case(name, label):
    """The name of the case that is to reject this answer, where the test of it begins with that; else None."""
    return first_cases(name).get(label)


def code_cells(path):
    for cell in notebooks.read(path)["cells"]:
        if cell["cell_type"] == "code":
            yield ast.parse(TransformerManager().transform_cell("".join(cell["source"])))


def called_exercise(node):
    """``(name, argument)`` of a call ``check.NAME(argument)``, else None."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "check" and node.args:
            return node.func.attr, node.args[0]
    return None


def calls(path):
    for tree in code_cells(path):
        yield from filter(None, map(called_exercise, ast.walk(tree)))


def defines(statement):
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
        return True
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)


def answer(folder, name, instead=""):
    """What a learner hands to ``check.NAME``: imports, constants, functions and files of the notebook, no measuring."""
    for path in notebooks.chapters(ROOT / folder):
        argument = dict(calls(path)).get(name)
        if argument is None:
            continue
        for file, text in scripts.written(path).items():
            Path(file).write_text(text, encoding="utf-8")
        space = {"__name__": "__main__"}
        for tree in code_cells(path):
            tree.body = [statement for statement in tree.body if defines(statement)]
            exec(compile(tree, f"<{path.name}>", "exec"), space)
        exec(compile(instead, "<wrong answer>", "exec"), space)
        return eval(compile(ast.Expression(argument), f"<{path.name}>", "eval"), space)
    raise AssertionError(f"no notebook in {folder}/ calls check.{name}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Files that a notebook writes lie in a folder of their own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def impatient(name, monkeypatch):
    """An answer that waits for ever is given up soon; right ones have the time that learners' have."""
    if hasattr(checks_of(name), "PATIENCE_S"):
        share = 2 if name == "capstone" else 4  # it starts Python and torch on two ranks again and again
        monkeypatch.setattr(checks_of(name), "PATIENCE_S", checks_of(name).PATIENCE_S / share)


def test_there_are_exercises_and_every_one_is_asked_in_a_notebook():
    asked = {name for path in notebooks.chapters(ROOT / "solutions") for name, _ in calls(path)}
    assert asked == set(NAMES) != set()


def test_every_exercise_has_its_own_name_chapter_cases_and_hints():
    for name in NAMES:
        exercise = getattr(check, name)
        assert exercise.name == name
        assert len(exercise.chapter) == 2 or exercise.chapter == name
        assert len(exercise.cases) >= 2
        assert len(exercise.hints) >= 1


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in NAMES])
def test_the_solution_passes(name):
    outcome = getattr(check, name).examine(answer("solutions", name))
    assert outcome.status == "passed", outcome


def other_right_answers():
    for file in sorted(WRONG.glob("*.py")):
        for number, (label, source) in enumerate(runpy.run_path(str(file)).get("RIGHT_TOO", ())):
            more = [pytest.mark.ci] * (number > 0)
            yield pytest.param(file.stem, source, id=f"{file.stem}: {label}", marks=marks(file.stem) + more)


@pytest.mark.parametrize(("name", "source"), list(other_right_answers()))
def test_another_right_answer_passes(name, source):
    outcome = getattr(check, name).examine(answer("solutions", name, instead=source))
    assert outcome.status == "passed", outcome


@pytest.mark.parametrize("name", NAMES)
def test_the_blank_is_not_attempted_and_does_not_raise(name, capsys):
    assert getattr(check, name)(answer("exercises", name)) is False
    assert "not attempted yet" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fn", UNIVERSAL.values(), ids=UNIVERSAL.keys())
def test_nonsense_is_rejected_and_does_not_raise(name, fn, impatient):
    assert getattr(check, name).examine(fn).status == "wrong"


@pytest.mark.parametrize("name", NAMES)
def test_there_are_at_least_five_wrong_answers(name):
    mine = [param for param in wrong_answers() if param.values[0] == name]
    assert len(mine) >= 5
    assert first_cases(name).keys() <= {param.id.partition(": ")[2] for param in mine}


@pytest.mark.parametrize(("name", "source", "hint"), list(wrong_answers()))
def test_a_wrong_answer_is_rejected_with_its_own_hint(name, source, hint, impatient, request):
    exercise = getattr(check, name)
    if first := first_case(name, request.node.callspec.id.partition(": ")[2]):
        names = [case.__name__ for case in exercise.cases]
        exercise = dataclasses.replace(exercise, cases=exercise.cases[names.index(first) :])
    outcome = exercise.examine(answer("solutions", name, instead=source))
    assert outcome.status == "wrong"
    if hint is not None:
        assert hint in outcome.hint


BACKWARD = """
    @staticmethod
    def backward(ctx, slope):
        raise WHAT
"""
FAILS_BACK = {
    "gathered": "class Gathered(Gathered):" + BACKWARD,
    "split_mlp": """right = split_mlp

def split_mlp(*given):
    return Fails.apply(right(*given))

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()
"""
    + BACKWARD,
}


@pytest.mark.parametrize("name", FAILS_BACK)
def test_an_error_in_backward_is_told_with_its_line_after_the_forward_pass_has_passed(name):
    source = FAILS_BACK[name].replace("WHAT", "ValueError('not this way')")
    outcome = getattr(check, name).examine(answer("solutions", name, instead=source))
    assert (outcome.status, len(outcome.passed)) == ("wrong", 1)
    assert "ValueError on rank" in outcome.got
    assert "not this way" in outcome.got
    assert outcome.trace.endswith("in backward")  # a string has no lines to be shown


@pytest.mark.parametrize("name", FAILS_BACK)
def test_a_backward_pass_still_to_be_written_leaves_the_forward_pass_its_tick(name):
    source = FAILS_BACK[name].replace("WHAT", "NotImplementedError")
    outcome = getattr(check, name).examine(answer("solutions", name, instead=source))
    assert (outcome.status, len(outcome.passed)) == ("not attempted", 1)


def test_a_record_of_events_is_told_in_full_and_an_error_by_its_name():
    wrong = {label: source for label, source, _ in runpy.run_path(str(WRONG / "promotion.py"))["WRONG"]}
    long = "a death at the last rung undoes the first promotion"
    outcome = check.promotion.examine(answer("solutions", "promotion", instead=wrong[long]))
    assert len(outcome.trace.split("), ")) > 12
    assert "..." not in outcome.trace
    outcome = check.promotion.examine(answer("solutions", "promotion", instead=wrong["an error in ask"]))
    assert outcome.got == "NameError: name 'errs' is not defined"
    assert outcome.trace.endswith("in ask")
