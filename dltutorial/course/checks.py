"""Check a learner's function: run real cases, show the first case that fails, and unfold hints.

The input is the learner's function. The output is whether it passed, which is also shown and recorded. A blank answer
shows "not attempted yet" and raises nothing, so a notebook of exercises runs from top to bottom.

Each exercise is one file in the course's folder. ``check.ring(ring)`` calls ``EXERCISE`` in
``solutions/checks/ring.py``. This file is imported as ``dltutorial.course.checks.ring``, in the notebook and on every
rank (https://docs.python.org/3/reference/import.html#path-attributes-on-modules).
"""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import guard, show
from dltutorial.course.chapter import advise_below_tracebacks
from dltutorial.errors import CourseError
from dltutorial.record import records

_FOLDER = "solutions/checks"
try:  # With a path, this module is a package, and the files of the folder are its submodules.
    __path__ = [str(paths.course_folder(_FOLDER) / _FOLDER)]
except CourseError:  # Registry raises it again when a check is used.
    __path__ = []


class Wrong(Exception):
    """An answer is not the expected one.

    Attributes:
        expected, got: the two values, which are described in words when they are shown.
        hint: about the mistake that leads to this value, or an empty string.
        trace: lines of the learner's code that led to the value.
    """

    def __init__(self, expected: Any, got: Any, hint: str = "", trace: str = "") -> None:
        super().__init__(expected, got, hint)
        self.expected = expected
        self.got = got
        self.hint = hint
        self.trace = trace


class NotTried(Exception):
    """A case cannot run on this machine. The message says what is missing. Only the last cases raise it."""


@dataclass(frozen=True)
class Outcome:
    """The result of an exercise's cases.

    Attributes:
        status: "passed", "wrong" or "not attempted".
        passed: the names of the cases that passed.
        failed: the name of the first case that failed.
        expected, got: what this case expected and got, in words.
        hint: about this mistake.
        trace: the lines of the learner's code that led to an exception.
        not_tried: the cases that cannot run on this machine, each with the reason.
    """

    status: str
    passed: tuple[str, ...] = ()
    failed: str = ""
    expected: str = ""
    got: str = ""
    hint: str = ""
    trace: str = ""
    not_tried: tuple[str, ...] = ()


@dataclass
class Exercise:
    """An exercise. A call with the learner's function runs the cases in order, shows the result, and records it.

    If the answer raises an exception, the notes that a case adds to it (``add_note``) are the hint.

    Attributes:
        name: as in ``check.NAME``.
        chapter: such as "01".
        cases: functions that take the learner's function, and raise ``Wrong`` or fail an assertion. The name of a case
            is the first line of its docstring, or else the name of the function. A case makes its own inputs and
            computes the expected value before the call, because an answer may change its inputs.
        hints: general hints, which are questions rather than answers. Each failed attempt unfolds one more.
        code: lines of a solution. They are shown, folded, from the second failed attempt on.
        deadline_s: time limit of all cases together in seconds.
        attempts: failed attempts in this kernel.
    """

    name: str
    chapter: str
    cases: Sequence[Callable[[Callable], None]]
    hints: Sequence[str] = ()
    code: Sequence[str] = ()
    deadline_s: float = 20.0
    attempts: int = field(default=0, compare=False)

    def __call__(self, fn: Any) -> bool:
        """Check ``fn``, and show and record the outcome. The record does not hold what the function returned.

        Returns:
            Whether all cases passed.

        Raises:
            CourseError: The record cannot be written.
        """
        outcome = self.examine(fn)
        self.attempts += outcome.status == "wrong"
        show.display(self._box(outcome))
        writer = records.Writer(self.chapter, os.environ.get("DLTUTORIAL_PRESET", "auto"))
        writer.write(
            self.name,
            kind="check",
            status=outcome.status,
            failed=outcome.failed,
            hint=outcome.hint[:240],
        )
        return outcome.status == "passed"

    def examine(self, fn: Any) -> Outcome:
        """Run the cases on ``fn`` until one fails. Nothing is shown, counted or recorded."""
        if fn is ... or fn is None:
            return Outcome("not attempted")
        if not callable(fn):
            return Outcome("wrong", failed="a function", expected="the function itself", got=guard.brief(fn))
        passed: list[str] = []
        not_tried: list[str] = []
        case = self.cases[0]
        try:
            with guard.deadline(self.deadline_s), guard.exit_raises():
                for case in self.cases:
                    try:
                        case(fn)
                        passed.append(_case_name(case))
                    except NotTried as reason:
                        not_tried.append(f"{_case_name(case)}: {reason}")
        except (Exception, SystemExit, guard.TooLate) as error:
            return self._failure(error, case, tuple(passed))
        return Outcome("passed", tuple(passed), not_tried=tuple(not_tried))

    def _failure(self, error: BaseException, case: Callable, passed: tuple[str, ...]) -> Outcome:
        """Return the outcome for the exception that ``case`` ended with."""
        if isinstance(error, NotImplementedError) and not error.args:
            return Outcome("not attempted", passed)
        name = _case_name(case)
        trace = guard.learners_frames(error, case)
        if isinstance(error, Wrong):
            hint = error.hint
            if error.got is None and not hint:
                hint = "Your function returned None. Is a return missing?"
            return Outcome(
                "wrong", passed, name, guard.brief(error.expected), guard.brief(error.got), hint, error.trace
            )
        if isinstance(error, guard.TooLate):
            hint = "Your function had come to its end. What it asks for takes too long: try it by itself."
            if trace:
                hint = "Your function does not come to an end. Look for a loop, or a wait, that nothing stops."
            return Outcome("wrong", passed, name, "an answer", f"none within {self.deadline_s:g} s", hint, trace)
        if isinstance(error, SystemExit):
            return Outcome("wrong", passed, name, got="a call of exit", hint="Return the answer; do not leave Python.")
        return Outcome("wrong", passed, name, got=_got(error, trace), hint=_notes(error), trace=trace)

    def _box(self, outcome: Outcome) -> show.Shown:
        """Return the box that shows an outcome."""
        n_passed = len(outcome.passed)
        if outcome.status == "not attempted":
            title = f"{self.name}: not attempted yet. Write your code in the cell above. Run that cell, then this one"
            if n_passed:
                title = f"{self.name}: {n_passed} of {len(self.cases)} cases pass, a part is still to be written"
            return show.box("not shown here", title, mark="not attempted")
        if outcome.status == "passed":
            title = f"{self.name}: all {n_passed} cases pass"
            if outcome.not_tried:
                title = f"{self.name}: {n_passed} cases pass, {len(outcome.not_tried)} not tried here"
            not_tried = [("not tried", case) for case in outcome.not_tried]
            return show.box("shown", title, [("", "; ".join(outcome.passed)), *not_tried])
        return self._failure_box(outcome)

    def _failure_box(self, outcome: Outcome) -> show.Shown:
        """Return the box of a wrong answer: the cases, what was expected and got, and the hints unfolded so far."""
        n_passed = len(outcome.passed)
        counts = {"passed": n_passed, "not run": len(self.cases) - n_passed - 1}
        title = f"{self.name}: 1 of {len(self.cases)} cases failed"
        title += "".join(f", {n} {status}" for status, n in counts.items() if n)
        lines = [("✓", name) for name in outcome.passed]
        lines.append(("✗", outcome.failed))
        for label, text in (("expected", outcome.expected), ("got", outcome.got)):
            if text:
                lines.append((label, text))
        hints = [hint for hint in (outcome.hint, *self.hints[: self.attempts]) if hint]
        code = self.code if self.attempts > 1 else ()
        return show.box(
            "failed",
            title,
            lines,
            kind="check",
            mark="check failed",
            trace=outcome.trace,
            hints=hints,
            code=code,
        )


class Registry:
    """Finds exercises by name: ``check.NAME`` is the :class:`Exercise` of that name."""

    def __getattr__(self, name: str) -> Exercise:
        """Return the exercise in ``solutions/checks/NAME.py``. From now on, tracebacks in the notebook end with advice.

        Raises:
            AttributeError: There is no such exercise. The message lists the exercises.
            CourseError: There is no folder of checks.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        names = dir(self)
        if not names:
            paths.course_folder(_FOLDER)
        if name not in names:
            raise AttributeError(f"no exercise {name!r}; there are: {', '.join(names) or 'none yet'}")
        advise_below_tracebacks()
        return importlib.import_module(f"{__name__}.{name}").EXERCISE

    def __dir__(self) -> list[str]:
        """Return the names of the exercises, which a notebook's completion offers."""
        files = (file for folder in __path__ for file in Path(folder).glob("*.py"))
        return sorted(file.stem for file in files if "\nEXERCISE = " in file.read_text(encoding="utf-8"))


check = Registry()


def _case_name(case: Callable) -> str:
    """Return the first line of a case's docstring, or else its name in words."""
    text = (case.__doc__ or "").strip().split("\n")[0].rstrip(".")
    return text or getattr(case, "__name__", "a case").strip("_").replace("_", " ")


def _got(error: BaseException, trace: str) -> str:
    """Describe an exception. Without a ``trace``, the case raised it because it cannot use the answer."""
    if trace:
        return guard.last_words(error)
    if isinstance(error, AssertionError):
        return str(error) or "something else"
    return f"an answer this case cannot use ({guard.last_words(error)})"


def _notes(error: BaseException) -> str:
    """Return the notes that the case added to the learner's exception."""
    return "; ".join(str(note) for note in getattr(error, "__notes__", ()))
