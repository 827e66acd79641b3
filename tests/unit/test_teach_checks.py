import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

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
def exercise(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "records.jsonl"))
    return Exercise("total", "07", [small, an_empty_list], hints=["Start at 0.", "Use a loop."], deadline_s=60)


def test_a_right_answer_passes_and_is_recorded(exercise, tmp_path, capsys):
    assert exercise(lambda x: float(sum(x))) is True
    assert "all 2 cases pass" in (out := capsys.readouterr().out)
    assert "Two numbers; an empty list" in out
    (record,) = records.read(tmp_path / "records.jsonl")
    assert (record["kind"], record["what"], record["chapter"], record["value"]) == ("check", "total", "07", True)


def blank(x):
    raise NotImplementedError


@pytest.mark.parametrize("fn", [blank, ..., None])
def test_a_blank_is_not_attempted_and_costs_no_hint(exercise, tmp_path, capsys, fn):
    assert exercise(fn) is False
    assert "not attempted yet" in capsys.readouterr().out
    assert exercise.attempts == 0
    assert next(records.read(tmp_path / "records.jsonl"))["value"] is None


def test_an_answer_that_returns_nothing_is_told_so(exercise):
    assert exercise.examine(lambda x: None).status == "wrong"
    assert "return missing" in exercise.examine(lambda x: None).hint


def test_a_case_that_cannot_run_here_is_neither_passed_nor_failed(exercise, tmp_path, capsys):
    def as_a_job(fn):
        raise NotTried("no Slurm here")

    exercise.cases = [*exercise.cases, as_a_job]
    assert exercise(lambda x: float(sum(x))) is True
    assert "2 cases pass, 1 not tried here" in (out := capsys.readouterr().out)
    assert "not tried as a job: no Slurm here" in out
    assert next(records.read(tmp_path / "records.jsonl"))["cases_passed"] == 2
    assert exercise.examine(lambda x: 7.0).status == "wrong"


def test_an_answer_that_says_it_was_not_tried_has_not_passed(exercise):
    def fn(x):
        raise NotTried("by me")

    assert exercise.examine(fn).status == "wrong"


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_answer_that_goes_elsewhere_takes_no_record_with_it(tmp_path, monkeypatch, is_gone):
    """Where runs and records go is told from the working folder, unless a variable says otherwise."""
    monkeypatch.delenv("DLTUTORIAL_RUNS", raising=False)
    monkeypatch.delenv("DLTUTORIAL_RECORDS", raising=False)
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)

    def fn(x):
        os.chdir(tmp_path)
        if is_gone:
            here.rename(tmp_path / "moved")
        return float(sum(x))

    Exercise("total", "07", [small], deadline_s=60)(fn)
    there = tmp_path / "moved" if is_gone else here
    assert Path.cwd() == there
    assert [record["what"] for record in records.read(there / "runs" / "records.jsonl")] == ["total"]
    assert {path.name for path in tmp_path.iterdir()} == {there.name}


def test_an_answer_that_forks_leaves_no_child(exercise):
    forked = []

    def fn(x):
        forked.append(os.fork())
        return float(sum(x))

    assert exercise.examine(fn).status == "passed"
    for pid in forked:
        assert os.waitpid(pid, 0) == (pid, 0)


@pytest.fixture
def torch_as_it_was():
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


def of_torchs_defaults(fn):
    x = torch.ones(2, requires_grad=True)
    expect((str(fn(x).dtype), str(torch.ones(1).device), fn(x).requires_grad), ("torch.float32", "cpu", True))


def set_defaults():
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)


def defaults():
    return torch.get_default_dtype(), torch.get_default_device().type, torch.is_grad_enabled()


def test_a_right_answer_is_right_whatever_a_cell_set_of_torchs_defaults(torch_as_it_was):
    set_defaults()
    assert Exercise("doubled", "07", [of_torchs_defaults]).examine(lambda x: 2 * x).status == "passed"
    assert defaults() == (torch.float64, "meta", False)


def test_what_an_answer_sets_of_torchs_defaults_ends_with_the_check(torch_as_it_was):
    Exercise("doubled", "07", [of_torchs_defaults]).examine(lambda x: set_defaults() or x)
    assert defaults() == (torch.float32, "cpu", True)


def test_a_torch_operation_that_is_not_implemented_is_no_blank(exercise):
    def fn(x):
        raise NotImplementedError("addmm is not implemented for 'Half'")

    assert exercise.examine(fn).status == "wrong"


def test_the_first_failing_case_is_shown_with_expected_and_got(exercise, capsys):
    assert exercise(lambda x: sum(x) or 7.0) is False
    out = capsys.readouterr().out
    assert "✓ Two numbers" in out
    assert "✗ an empty list\n    expected 0.0\n    got 7.0\n    hint 1: An empty sum is 0." in out


def test_a_known_mistake_gets_its_own_hint(exercise):
    assert exercise.examine(lambda x: float(np.prod(x))).hint == "That is their product."


def test_the_record_names_the_failed_case_and_the_misconception(exercise, tmp_path):
    exercise(lambda x: float(np.prod(x)))
    exercise(lambda x: float(sum(x)))
    wrong, right = records.read(tmp_path / "records.jsonl")
    assert (wrong["failed"], wrong["hint"]) == ("Two numbers", "That is their product.")
    assert (wrong["status"], wrong["attempts"], wrong["cases"], wrong["cases_passed"]) == ("wrong", 1, 2, 0)
    assert (right["failed"], right["hint"], right["status"]) == ("", "", "passed")


def test_more_failed_attempts_unfold_more_hints(exercise, capsys):
    seen = []
    for _ in range(3):
        exercise(lambda x: 9.0)
        seen.append(capsys.readouterr().out.count("hint "))
    assert seen == [1, 2, 2]


def test_what_has_not_run_is_not_counted_as_failed(exercise, capsys):
    exercise(lambda x: 9.0)
    exercise(lambda x: sum(x) or 7.0)
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("✗ ")]
    assert titles == [
        "✗ total: cases 1 failed, 1 not run",
        "✗ total: cases 1 passed, 1 failed",
    ]


def test_lines_of_a_solution_are_folded_and_come_with_the_second_failed_attempt(exercise, monkeypatch):
    monkeypatch.setattr(show, "display", (seen := []).append)
    exercise.code = ["total += number"]
    for _ in range(2):
        exercise(lambda x: 9.0)
    assert ["total += number" in shown.html for shown in seen] == [False, True]
    assert "<details><summary>show me code 1</summary><code>total += number</code></details>" in seen[1].html
    assert "total += number" not in seen[1].text


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


def test_a_note_on_an_error_is_a_hint_and_hides_no_word_of_it(exercise):
    def noted(fn):
        try:
            fn([])
        except ZeroDivisionError as error:
            error.add_note("Is it empty?")
            raise

    exercise.cases = [noted]
    outcome = exercise.examine(lambda x: 1 / len(x))
    assert (outcome.got, outcome.hint) == ("ZeroDivisionError: division by zero", "Is it empty?")


def test_lines_that_a_case_knows_are_shown(exercise, capsys):
    def on_a_rank(fn):
        raise Wrong("no error", "ValueError on rank 1", trace="line 3, in fn")

    exercise.cases = [on_a_rank]
    exercise(lambda x: 1)
    assert "line 3, in fn" in capsys.readouterr().out


def test_of_long_arrays_the_first_numbers_that_differ_are_shown():
    right = np.arange(12.0).reshape(4, 3)
    wrong = right.copy()
    wrong[3, 1:] = -1
    with pytest.raises(Wrong) as caught:
        expect_close(torch.tensor(wrong), right)
    assert caught.value.expected == "shape (4, 3), from [3, 1] on: [10.0, 11.0]"
    assert caught.value.got == "shape (4, 3), from [3, 1] on: [-1.0, -1.0]"
    with pytest.raises(Wrong) as caught:
        expect_close(right + 1, right)  # nothing to look for
    assert caught.value.expected is right


def spin(x):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(1)


def stubborn(x):
    for _ in range(2):
        with contextlib.suppress(BaseException):
            time.sleep(60)


def swallow(x):
    n = 0
    while True:
        try:
            n += 1
        except:  # noqa: E722
            n -= 1


def swallow_below(x):
    def wait():
        time.sleep(0.01)

    while True:
        try:
            wait()
        except BaseException:
            n = 0
            n += 1


@pytest.mark.parametrize("fn", [spin, stubborn, swallow, swallow_below])
def test_an_endless_answer_ends_at_the_deadline(exercise, fn):
    outcome = dataclasses.replace(exercise, deadline_s=0.3).examine(fn)
    assert outcome.status == "wrong"
    assert fn is stubborn or outcome.got == "none within 0.3 s"


def test_an_answer_that_stays_in_one_call_into_c_ends_its_process_and_says_where():
    code = """
from dltutorial.course import guard
guard._GIVE_UP_S = 0.5
def answer():
    sum(range(10**14))
with guard.deadline(0.2):
    answer()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "line 5 in answer" in ended.stderr


def test_what_takes_long_after_the_answer_returned_is_no_endless_loop(exercise):
    def trains_for_long(fn):
        time.sleep(fn([]) + 60)

    slow = dataclasses.replace(exercise, cases=[trains_for_long], deadline_s=0.3).examine(lambda x: 1.0)
    assert "had come to its end" in slow.hint
    assert "does not come to an end" in dataclasses.replace(exercise, deadline_s=0.3).examine(spin).hint


def test_a_timer_that_was_already_running_goes_on(exercise):
    with_alarm = signal.getitimer(signal.ITIMER_REAL)[0]
    before = signal.getsignal(signal.SIGALRM)
    if not with_alarm:
        signal.setitimer(signal.ITIMER_REAL, 300)
    try:
        exercise.examine(sum)
        assert signal.getsignal(signal.SIGALRM) is before
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1
    finally:
        if not with_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)


def test_outside_the_main_thread_a_check_works_without_a_deadline(exercise):
    found = []
    thread = threading.Thread(target=lambda: found.append(exercise.examine(lambda x: float(sum(x))).status))
    thread.start()
    thread.join()
    assert found == ["passed"]


class Rude:
    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no eq")

    __hash__ = None


def mutate(x):
    x.clear()
    return 3.0


@pytest.mark.parametrize(
    "fn",
    [
        mutate,
        lambda x: sys.exit(0),
        lambda x: print("hello"),
        lambda x: "3.0",
        lambda x: float("nan"),
        lambda x: np.array([3.0, 0.0]),
        lambda x: torch.tensor([[3.0]]),
        lambda x: Rude(),
        lambda x: 3.0 + 0j,
        lambda x: [3.0],
        lambda x: iter(()),
        lambda: 3.0,
        3.0,
    ],
)
def test_no_wrong_answer_breaks_the_check(exercise, capsys, fn):
    assert exercise(fn) is False
    assert "✗" in capsys.readouterr().out


def test_an_interrupt_by_the_learner_is_not_swallowed(exercise):
    def fn(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercise.examine(fn)


def test_an_assertion_in_a_case_speaks_for_itself():
    def case(fn):
        if fn() != 2:
            raise AssertionError("it should be two")

    assert Exercise("two", "07", [case]).examine(lambda: 3).got == "it should be two"


@pytest.mark.parametrize("got", [True, 1.0, "1", torch.tensor(2), [1]])
def test_expect_compares_type_and_value(got):
    with pytest.raises(Wrong):
        expect(got, 1)


def test_expect_takes_the_integers_of_numpy_and_torch():
    expect(np.int64(1), 1)
    expect(torch.tensor(1), 1)
    expect_close(torch.tensor([1.0, 2.0]), np.array([1.0, 2.0]))


def test_an_unknown_exercise_lists_those_there_are():
    with pytest.raises(AttributeError, match="no exercise 'nonsense'; there are: "):
        check.nonsense  # noqa: B018


def test_without_the_folder_of_checks_one_line_says_where_to_go(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "__path__", [])
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "site-packages" / "dltutorial" / "paths.py"))
    with pytest.raises(CourseError, match=r"^no solutions/checks/ here or above; [^\n]*$"):
        check.ring  # noqa: B018


def test_a_check_is_imported_by_a_name_that_another_process_finds_too():
    code = "from dltutorial.course.checks import ring; print(ring.EXERCISE.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "ring\n", done.stderr


@pytest.mark.parametrize("how", ["returned", "raised"])
def test_what_never_can_be_put_into_words_is_told_in_time(how):
    class Endless(Exception):
        def __repr__(self):
            while True:
                pass

        __str__ = __repr__

    def case(fn):
        raise checks.Wrong(1, fn())

    def answer():
        if how == "raised":
            raise Endless
        return Endless()

    outcome = checks.Exercise("e", "01", (case,), deadline_s=0.5).examine(answer)
    assert outcome.status == "wrong"
