"""Checks of exercises: real cases, the first that fails with expected and got, and hints that unfold.

In: the learner's function. Out: whether it passed, shown and recorded. A blank says "not attempted yet" and never
raises, so that a notebook of exercises runs from top to bottom. Exercises live in the course's folder, one a file:
``check.ring(ring)`` calls ``EXERCISE`` of ``solutions/checks/ring.py``, which is imported, here and on every rank, as
the module ``dltutorial.course.checks.ring``.
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
try:  # makes a package of this module: files of that folder are its submodules
    __path__ = [str(paths.course_folder(_FOLDER) / _FOLDER)]
except CourseError:  # told when a check is asked for
    __path__ = []


class Wrong(Exception):
    """An answer is not the expected one; ``hint`` is about this very mistake, ``trace`` are lines that led there."""

    def __init__(self, expected: Any, got: Any, hint: str = "", trace: str = "") -> None:
        """Keep all as they are; they are put into words when shown."""
        super().__init__(expected, got, hint)
        self.expected, self.got, self.hint, self.trace = expected, got, hint, trace


class NotTried(Exception):
    """A case cannot run on this machine; the words say what is missing. Only the last cases raise it."""


@dataclass(frozen=True)
class Outcome:
    """What a learner's function did: ``status`` is "passed", "wrong" or "not attempted".

    ``passed`` and ``failed`` name the cases that passed and the first that did not; ``expected`` and ``got`` are in
    words; ``hint`` is about this very mistake; ``trace`` holds the lines of the learner's code that led to an error;
    ``not_tried`` names cases that cannot run here, and says why.
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
    """One exercise. Calling it with the learner's function runs the cases in order, shows the result, records it.

    A note that a case adds to the answer's own exception (``add_note``) is its hint.

    Attributes:
        name: as in ``check.NAME``.
        chapter: such as "01".
        cases: callables that take the learner's function and raise ``Wrong`` (or fail an assertion). The name of a
            case is its docstring's first line, else its own name. A case makes its own inputs, afresh, and works
            out what it expects before it calls: then an answer that changes its inputs misleads nobody.
        hints: general ones, questions rather than answers; each failed attempt unfolds one more.
        code: lines of a solution, for who asks: from the second failed attempt on they are there, and folded.
        deadline_s: for all the cases together.
        attempts: failed ones so far, in this kernel.
    """

    name: str
    chapter: str
    cases: Sequence[Callable[[Callable], None]]
    hints: Sequence[str] = ()
    code: Sequence[str] = ()
    deadline_s: float = 20.0
    attempts: int = field(default=0, compare=False)

    def __call__(self, fn: Any) -> bool:
        """Check ``fn``, show and record the outcome; returns whether it passed.

        The record names the first case that failed and what that case knows about this very mistake; where it knows
        nothing, ``hint`` is empty. What the function returned is not recorded.
        """
        outcome = self.examine(fn)
        self.attempts += outcome.status == "wrong"
        show.display(self._shown(outcome))
        records.Writer(self.chapter, os.environ.get("DLTUTORIAL_PRESET", "auto")).write(
            self.name, {"passed": True, "wrong": False}.get(outcome.status), kind="check", status=outcome.status,
            cases_passed=len(outcome.passed), cases=len(self.cases), attempts=self.attempts, failed=outcome.failed,
            hint=outcome.hint[:240],
        )  # fmt: skip
        return outcome.status == "passed"

    def examine(self, fn: Any) -> Outcome:
        """Run the cases on ``fn`` until one fails; nothing is shown, counted or recorded."""
        if fn is ... or fn is None:
            return Outcome("not attempted")
        if not callable(fn):
            return Outcome("wrong", failed="a function", expected="the function itself", got=guard.brief(fn))
        passed: list[str] = []
        not_tried: list[str] = []
        case = self.cases[0]
        try:
            with guard.deadline(self.deadline_s):
                for case in self.cases:
                    try:
                        case(fn)
                        passed.append(_case_name(case))
                    except NotTried as missing:
                        not_tried.append(f"{_case_name(case)}: {missing}")
        except (Exception, SystemExit, guard.TooLate) as error:
            return self._failure(error, case, tuple(passed))
        return Outcome("passed", tuple(passed), not_tried=tuple(not_tried))

    def _failure(self, error: BaseException, case: Callable, passed: tuple[str, ...]) -> Outcome:
        """Return the outcome for the exception that ``case`` ended with."""
        if isinstance(error, NotImplementedError) and not error.args:
            return Outcome("not attempted", passed)
        expected = hint = trace = ""
        if isinstance(error, Wrong):
            expected, got, hint = guard.brief(error.expected), guard.brief(error.got), error.hint
            trace = error.trace
            if error.got is None and not hint:
                hint = "Your function returned None. Is a return missing?"
        elif isinstance(error, guard.TooLate):
            expected, got = "an answer", f"none within {self.deadline_s:g} s"
            trace = guard.learners_frames(error, case)
            hint = "Your function does not come to an end. Look for a loop, or a wait, that nothing stops."
            if not trace:
                hint = "Your function had come to its end. What it asks for takes too long: try it by itself."
        elif isinstance(error, SystemExit):
            got, hint = "sys.exit", "Return the answer; do not leave Python."
        else:
            trace, hint = guard.learners_frames(error, case), "; ".join(map(str, getattr(error, "__notes__", ())))
            got = guard.last_words(error) if trace else f"an answer this case cannot use ({guard.last_words(error)})"
            if isinstance(error, AssertionError) and not trace:
                got = str(error) or "something else"
        return Outcome("wrong", passed, _case_name(case), expected, got, hint, trace)

    def _shown(self, outcome: Outcome) -> show.Shown:
        """The outcome as a list of cases, what was expected and got, and the hints unfolded so far."""
        if outcome.status == "not attempted":
            begun = f"{len(outcome.passed)} of {len(self.cases)} cases pass, a part is still to be written"
            how_far = begun if outcome.passed else "not attempted yet"
            return show.box("not shown here", f"{self.name}: {how_far}", mark="not attempted")
        if outcome.status == "passed":
            told = [("", "; ".join(outcome.passed)), *(("not tried", case) for case in outcome.not_tried)]
            n_passed, n_not = len(outcome.passed), len(outcome.not_tried)
            title = f"{n_passed} cases pass, {n_not} not tried here" if n_not else f"all {n_passed} cases pass"
            return show.box("shown", f"{self.name}: {title}", told)
        lines = [*(("✓", name) for name in outcome.passed), ("✗", outcome.failed)]
        lines += [fact for fact in (("expected", outcome.expected), ("got", outcome.got)) if fact[1]]
        hints = [hint for hint in (outcome.hint, *self.hints[: self.attempts]) if hint]
        not_run = len(self.cases) - len(outcome.passed) - 1
        counts = [(len(outcome.passed), "passed"), (1, "failed"), (not_run, "not run")]
        title = f"{self.name}: cases {', '.join(f'{n} {word}' for n, word in counts if n)}"
        trace, code = outcome.trace, self.code if self.attempts > 1 else ()
        return show.box("failed", title, lines, kind="check", mark="check failed", trace=trace, hints=hints, code=code)


class Registry:
    """Finds exercises by name: ``check.NAME`` is the :class:`Exercise` of that name."""

    def __getattr__(self, name: str) -> Exercise:
        """Return the exercise in ``solutions/checks/NAME.py``. Tracebacks in this notebook end with advice from now on.

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
        """The names of the exercises, for completion."""
        files = (file for folder in __path__ for file in Path(folder).glob("*.py"))
        return sorted(file.stem for file in files if "\nEXERCISE = " in file.read_text(encoding="utf-8"))


check = Registry()


def _case_name(case: Callable) -> str:
    text = (case.__doc__ or "").strip().split("\n")[0].rstrip(".")
    return text or getattr(case, "__name__", "a case").strip("_").replace("_", " ")
