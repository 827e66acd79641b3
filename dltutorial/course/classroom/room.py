"""What the events of a class mean: who is where, who needs help, what the room gets wrong, what its machines do.

In: learners' events and the present. Out: a :class:`Room` of counts, names and lists of numbers; nothing is drawn here.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dltutorial.course.classroom.folder import Learner, Problem
from dltutorial.course.classroom.lines import Event
from dltutorial.record import sharing

STUCK_AFTER = 3  # wrong answers in a row
QUIET_MIN = 15.0  # a chapter records something every five minutes or so
AWAY_MIN = 180.0
STATES = ("stuck", "quiet", "working", "away")


@dataclass(frozen=True)
class Person:
    """Where a learner is, and how it goes.

    Attributes:
        chapter: of the latest record; empty before the first.
        idle_min: minutes since then; None before the first.
        state: "stuck" (wrong three times in a row, and still there), "quiet", "working" or "away".
        exercise, wrong_in_a_row, problem: of the exercise last checked, if it has not passed yet.
        passed: names of the exercises passed.
    """

    name: str
    chapter: str
    idle_min: float | None
    state: str
    exercise: str = ""
    wrong_in_a_row: int = 0
    problem: str = ""
    passed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Misconception:
    """A mistake that the checks know by its hint, or else a case that fails: who has made it, who is still at it."""

    chapter: str
    exercise: str
    case: str
    hint: str
    still: tuple[str, ...]
    ever: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """One exercise: how many learners have passed it, how many have tried and not passed yet, tries until it passed."""

    chapter: str
    exercise: str
    passed: int
    trying: int
    tries: float | None


@dataclass(frozen=True)
class Guessed:
    """One prediction: the guesses that somebody typed, what was measured, how many left the default."""

    chapter: str
    name: str
    unit: str
    guesses: tuple[float, ...]
    measured: tuple[float, ...]
    defaults: int


@dataclass(frozen=True)
class Measured:
    """One measurement of the room's machines, the latest of each learner; presets are kept apart."""

    what: str
    unit: str
    preset: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Room:
    """A class at one moment."""

    at_s: float
    people: tuple[Person, ...]
    misconceptions: tuple[Misconception, ...]
    progress: tuple[Progress, ...]
    guessed: tuple[Guessed, ...]
    measured: tuple[Measured, ...]
    failed_claims: tuple[tuple[str, str, int], ...]
    problems: tuple[Problem, ...]

    def count(self, state: str) -> int:
        """How many people are in a state."""
        return sum(person.state == state for person in self.people)

    @property
    def middle(self) -> str:
        """The chapter of the learner in the middle of the room; empty if nobody has begun."""
        begun = sorted(person.chapter for person in self.people if person.chapter)
        return statistics.median_low(begun) if begun else ""


def look(learners: Sequence[Learner], problems: Sequence[Problem], now_s: float) -> Room:
    """The room now."""
    return Room(
        now_s,
        tuple(_person(learner, now_s) for learner in learners),
        tuple(_misconceptions(learners)),
        tuple(_progress(learners)),
        tuple(_guessed(learners)),
        tuple(_measured(learners)),
        tuple(_failed_claims(learners)),
        tuple(problems),
    )


def _person(learner: Learner, now_s: float) -> Person:
    if not learner.events:
        return Person(learner.name, "", None, "away")
    last = learner.events[-1]
    idle_min = max(0.0, (now_s - last.at_s) / 60)
    passed = tuple(dict.fromkeys(event.what for event in learner.events if event.status == "passed"))
    checks = [event for event in learner.events if _is_answer(event)]
    open_one = checks[-1] if checks and checks[-1].status == "wrong" else None
    row = _wrong_in_a_row(checks, open_one.what) if open_one else 0
    state = "away" if idle_min > AWAY_MIN else "quiet" if idle_min > QUIET_MIN else "working"
    if open_one and row >= STUCK_AFTER and last.chapter == open_one.chapter and state != "away":
        state = "stuck"
    told = (open_one.what, row, open_one.hint or open_one.failed) if open_one else ("", 0, "")
    return Person(learner.name, last.chapter, idle_min, state, *told, passed)


def _is_answer(event: Event) -> bool:
    return event.kind == "check" and event.status in ("passed", "wrong")


def _wrong_in_a_row(checks: Sequence[Event], exercise: str) -> int:
    own = [event for event in checks if event.what == exercise]
    return len(list(takewhile(lambda event: event.status == "wrong", reversed(own))))


def _misconceptions(learners: Iterable[Learner]) -> list[Misconception]:
    """The one most people are still at first, then the one most have made."""
    ever: dict[tuple, dict[str, None]] = {}
    still: dict[tuple, list[str]] = {}
    for learner in learners:
        latest: dict[str, Event] = {}
        for event in filter(_is_answer, learner.events):
            latest[event.what] = event
            if event.status == "wrong":
                ever.setdefault(_mistake(event), {})[learner.name] = None
        for event in latest.values():
            if event.status == "wrong":
                still.setdefault(_mistake(event), []).append(learner.name)
    found = [Misconception(*key, tuple(still.get(key, ())), tuple(names)) for key, names in ever.items()]
    return sorted(found, key=lambda one: (-len(one.still), -len(one.ever), one.chapter, one.exercise))


def _mistake(event: Event) -> tuple[str, str, str, str]:
    return event.chapter, event.what, "" if event.hint else event.failed, event.hint


def _progress(learners: Iterable[Learner]) -> list[Progress]:
    passed: Counter[tuple[str, str]] = Counter()
    trying: Counter[tuple[str, str]] = Counter()
    tries: dict[tuple[str, str], list[int]] = {}
    for learner in learners:
        own: dict[tuple[str, str], list[str]] = {}
        for event in filter(_is_answer, learner.events):
            own.setdefault((event.chapter, event.what), []).append(event.status)
        for key, outcomes in own.items():
            if "passed" in outcomes:
                passed[key] += 1
                tries.setdefault(key, []).append(outcomes.index("passed") + 1)
            else:
                trying[key] += 1
    keys = sorted({*passed, *trying})
    return [
        Progress(*key, passed[key], trying[key], statistics.median(tries[key]) if key in tries else None)
        for key in keys
    ]


def _guessed(learners: Iterable[Learner]) -> list[Guessed]:
    """Each learner's latest; units that differ (somebody's course is another) are kept apart."""
    found: dict[tuple[str, str, str], list[Event]] = {}
    for learner in learners:
        latest = {(e.chapter, e.what, e.unit): e for e in learner.events if e.kind == "prediction"}
        for key, event in latest.items():
            found.setdefault(key, []).append(event)
    return [
        Guessed(
            *key,
            tuple(event.guess for event in events if event.touched),
            tuple(event.measured for event in events),
            sum(not event.touched for event in events),
        )
        for key, events in sorted(found.items())
    ]


def _measured(learners: Iterable[Learner]) -> list[Measured]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for learner in learners:
        latest = {(e.what, e.unit, e.preset): e for e in learner.events if e.kind == "measurement"}
        for key, event in latest.items():
            found.setdefault(key, []).append(event.value)
    order = list(sharing.SHARED_MEASUREMENTS)
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1:]))
    return [Measured(*key, tuple(found[key])) for key in keys]


def _failed_claims(learners: Iterable[Learner]) -> list[tuple[str, str, int]]:
    """(chapter, claim, learners with whom it failed), the commonest first."""
    counts: Counter[tuple[str, str]] = Counter()
    for learner in learners:
        counts.update({(e.chapter, e.what) for e in learner.events if e.kind == "claim" and e.status == "failed"})
    return [(*key, n) for key, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
