import contextlib
import dataclasses
import signal
import sys
import time

import numpy as np
import pytest
import torch

from dltutorial import paths
from dltutorial.course import check, checks, show
from dltutorial.course.checks import Exercise, NotTried, Wrong
from dltutorial.course.checks.expect import expect, expect_close
from dltutorial.errors import CourseError
from dltutorial.record import records


def small(fn):
    """Two numbers."""
    expect_close(fn([1.0, 2.0]), 3.0, mistakes=[(2.0, "That is their product.")])


def an_empty_list(fn):
    expect_close(fn([]), 0.0, hint="An empty sum is 0.")


@pytest.fixture
def exercise():
    return Exercise("total", "07", [small, an_empty_list], hints=["Start at 0.", "Use a loop."], deadline_s=60)


def written():
    return records.read(paths.records_dir())


def test_a_right_answer_passes_and_is_recorded(exercise, capsys):
    assert exercise(lambda x: float(sum(x))) is True
    out = capsys.readouterr().out
    assert "all 2 cases pass" in out
    assert "Two numbers; an empty list" in out
    (record,) = written()
    assert (record["kind"], record["what"], record["chapter"], record["status"]) == ("check", "total", "07", "passed")


def blank(x):
    raise NotImplementedError


@pytest.mark.parametrize("fn", [blank, ..., None])
def test_a_blank_is_not_attempted_and_costs_no_hint(exercise, capsys, fn):
    assert exercise(fn) is False
    assert "not attempted yet" in capsys.readouterr().out
    assert exercise.attempts == 0
    assert written()[0]["status"] == "not attempted"


def test_a_torch_operation_that_is_not_implemented_is_no_blank(exercise):
    def fn(x):
        raise NotImplementedError("addmm is not implemented for 'Half'")

    assert exercise.examine(fn).status == "wrong"


def test_an_answer_that_returns_nothing_gets_a_hint(exercise):
    outcome = exercise.examine(lambda x: None)
    assert outcome.status == "wrong"
    assert "return missing" in outcome.hint


def test_a_case_that_cannot_run_here_is_neither_passed_nor_failed(exercise, capsys):
    def as_a_job(fn):
        raise NotTried("no Slurm here")

    exercise.cases = [*exercise.cases, as_a_job]
    assert exercise(lambda x: float(sum(x))) is True
    out = capsys.readouterr().out
    assert "2 cases pass, 1 not tried here" in out
    assert "not tried as a job: no Slurm here" in out
    assert exercise.examine(lambda x: 7.0).status == "wrong"


def test_the_first_case_that_fails_is_shown_with_expected_and_got(exercise, capsys):
    assert exercise(lambda x: sum(x) or 7.0) is False
    out = capsys.readouterr().out
    assert "✓ Two numbers" in out
    assert "✗ an empty list\n    expected 0.0\n    got 7.0\n    hint 1: An empty sum is 0." in out


def test_the_record_names_the_failed_case_and_the_misconception(exercise):
    exercise(lambda x: float(np.prod(x)))
    exercise(lambda x: float(sum(x)))
    wrong, right = written()
    assert (wrong["failed"], wrong["hint"]) == ("Two numbers", "That is their product.")
    assert wrong["status"] == "wrong"
    assert (right["failed"], right["hint"], right["status"]) == ("", "", "passed")


def test_more_failed_attempts_unfold_more_hints(exercise, capsys):
    counts = []
    for _ in range(3):
        exercise(lambda x: 9.0)
        counts.append(capsys.readouterr().out.count("hint "))
    assert counts == [1, 2, 2]


def test_what_has_not_run_is_not_counted_as_failed(exercise, capsys):
    exercise(lambda x: 9.0)
    exercise(lambda x: sum(x) or 7.0)
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("✗ ")]
    assert titles == ["✗ total: 1 of 2 cases failed, 1 not run", "✗ total: 1 of 2 cases failed, 1 passed"]


def test_lines_of_a_solution_are_folded_and_come_with_the_second_failed_attempt(exercise, monkeypatch):
    shown = []
    monkeypatch.setattr(show, "display", shown.append)
    exercise.code = ["total += number"]
    for _ in range(2):
        exercise(lambda x: 9.0)
    assert "total += number" not in shown[0].html
    assert "<details><summary>show me code 1</summary><code>total += number</code></details>" in shown[1].html


def crash(x):
    return x[0] / 0


def deep(x):
    return torch.zeros(2) @ torch.zeros(3)


def test_an_error_is_shown_by_the_learners_own_lines_only(exercise):
    outcome = exercise.examine(crash)
    assert outcome.got == "ZeroDivisionError: float division by zero"
    assert outcome.trace.endswith("in crash:  return x[0] / 0")
    assert len(outcome.trace.splitlines()) == 1
    assert exercise.examine(deep).trace.endswith("in deep:  return torch.zeros(2) @ torch.zeros(3)")


def test_of_long_arrays_the_first_numbers_that_differ_are_shown():
    right = np.arange(12.0).reshape(4, 3)
    wrong = right.copy()
    wrong[3, 1:] = -1
    with pytest.raises(Wrong) as caught:
        expect_close(torch.tensor(wrong), right)
    assert caught.value.expected == "shape (4, 3), from [3, 1] on: [10.0, 11.0]"
    assert caught.value.got == "shape (4, 3), from [3, 1] on: [-1.0, -1.0]"


def endless(x):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(1)


def test_an_endless_answer_ends_at_the_time_limit(exercise):
    previous_handler = signal.getsignal(signal.SIGALRM)
    outcome = dataclasses.replace(exercise, deadline_s=0.3).examine(endless)
    assert (outcome.status, outcome.got) == ("wrong", "none within 0.3 s")
    assert "does not come to an end" in outcome.hint
    assert signal.getsignal(signal.SIGALRM) is previous_handler


WRONG = {
    "sys.exit": lambda x: sys.exit(0),
    "a word": lambda x: "3.0",
    "NaN": lambda x: float("nan"),
    "no arguments": lambda: 3.0,
    "no function": 3.0,
}


@pytest.mark.parametrize("fn", WRONG.values(), ids=WRONG)
def test_no_wrong_answer_raises_an_exception(exercise, capsys, fn):
    assert exercise(fn) is False
    assert "✗" in capsys.readouterr().out


def test_exit_in_a_notebook_is_a_wrong_answer_and_does_not_end_the_kernel(exercise):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.ask_exit = ask_exit = object()  # it would end the kernel
    try:
        outcome = exercise.examine(lambda x: shell.user_ns["exit"]())
        assert outcome.hint == "Return the answer; do not leave Python."
        assert shell.ask_exit is ask_exit
    finally:
        InteractiveShell.clear_instance()


def test_an_interrupt_by_the_learner_is_not_caught(exercise):
    def fn(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercise.examine(fn)


@pytest.mark.parametrize("got", [True, 1.0, "1", torch.tensor(2), [1]])
def test_expect_compares_type_and_value(got):
    with pytest.raises(Wrong):
        expect(got, 1)


def test_an_unknown_exercise_lists_those_that_exist():
    with pytest.raises(AttributeError, match=r"no exercise 'nonsense'; there are: .*ring"):
        check.nonsense  # noqa: B018


def test_without_the_folder_of_checks_one_line_says_where_to_go(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "__path__", [])
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "site-packages" / "dltutorial" / "paths.py"))
    with pytest.raises(CourseError, match=r"^no solutions/checks/ here or above; [^\n]*$"):
        check.ring  # noqa: B018
