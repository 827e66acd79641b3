"""Below the first screen of a class's page: exercises, guesses, machines, claims, everybody, what could not be read.

In: a room and the course's words. Out: one section of HTML each, empty where there is nothing to show.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from dltutorial.course import show
from dltutorial.course.classroom import markup, strips
from dltutorial.course.classroom.room import Misconception, Room
from dltutorial.course.classroom.wording import Wording
from dltutorial.record import sharing

SIGNS = MappingProxyType({"stuck": "▲", "quiet": "○", "working": "●", "away": "·"})
_MOST_ROWS = 60  # of what records name themselves: one learner's flood of names must not drown the page


def mistake(one: Misconception) -> str:
    """A misconception in the words of its check, else the case that fails."""
    return markup.text(one.hint) if one.hint else f"<i>fails:</i> {markup.text(one.case)}"


def exercises(room: Room, words: Wording) -> str:
    """Who has passed which, and every mistake made."""
    if not room.progress:
        return ""
    n = len(room.people)
    rows = [
        (
            one.chapter,
            one.exercise,
            markup.Html(markup.stacked(one.passed, one.trying, n)),
            str(one.passed),
            str(one.trying),
            str(n - one.passed - one.trying),
            f"{one.tries:g}" if one.tries else "–",
        )
        for one in _known_to_most(room.progress, lambda one: one.passed + one.trying)
    ]
    head = ("", "exercise", "", "# ✓ passed", "# ✗ trying", "# – not begun", "# tries to pass, median")
    hard = max(room.progress, key=lambda one: (one.trying, one.chapter))
    finding = f"{hard.exercise}: {hard.passed} of {n} have passed it, {hard.trying} are trying"
    rest = room.misconceptions[:_MOST_ROWS]
    table = markup.table(head, rows)
    seen = markup.table(
        ("", "exercise", "misconception, as its check tells it", "# at it now", "# ever"),
        [(m.chapter, m.exercise, markup.Html(mistake(m)), str(len(m.still)), str(len(m.ever))) for m in rest],
    )
    fold = f"<details><summary>{len(rest)} mistakes made so far</summary>{seen}</details>" if rest else ""
    return markup.section("Exercises", finding, table + fold, "wide")


def guesses(room: Room, words: Wording) -> str:
    """How the guesses lie about what was measured."""
    if not room.guessed:
        return ""
    body = ""
    shown = _known_to_most(room.guessed, lambda one: len(one.measured))
    for one in sorted(shown, key=lambda one: one.chapter, reverse=True):  # what is at hand comes first
        question = words.questions.get((one.chapter, one.name), one.name)
        left = f"{markup.plural(one.defaults, 'learner')} left the default." if one.defaults else ""
        note = " ".join(filter(None, (f"[{one.unit}]" if one.unit else "", _far(one.guesses, one.measured), left)))
        picture = strips.guesses(question, one.guesses, one.measured, one.unit)
        body += markup.figure(question, note, picture, one.chapter)
    finding = f"{markup.plural(sum(len(one.guesses) for one in room.guessed), 'guess', 'guesses')} typed in"
    return markup.section("Guesses against measurements", finding, f'<div class="strips">{body}</div>', "wide")


def _far(guesses: Sequence[float], measured: Sequence[float]) -> str:
    """How far the middle guess lies from the middle measurement, in words."""
    if not guesses:
        return "Nobody typed a guess."
    guess, value = strips.middle(guesses), strips.middle(measured)
    if guess <= 0 or value <= 0:
        return ""
    ratio = guess / value
    if 0.8 <= ratio <= 1.25:
        return "The middle guess is right within a quarter."
    return f"The middle guess is {show.number(max(ratio, 1 / ratio))} × too {'high' if ratio > 1 else 'low'}."


def machines(room: Room, words: Wording) -> str:
    """How the speeds of the machines spread."""
    if not room.measured:
        return ""
    body = ""
    for one in _known_to_most(room.measured, lambda one: len(one.values)):
        label = sharing.SHARED_MEASUREMENTS[one.what]
        note = f"[{one.unit}], preset {one.preset}, {markup.plural(len(one.values), 'learner')}"
        body += markup.figure(label[0].upper() + label[1:], note, strips.spread(label, one.values, one.unit))
    ladders = [value for one in room.measured if one.what == "ladder_gain" for value in one.values]
    finding = "What the room's machines do"
    if ladders:
        middle = strips.middle(ladders)
        finding = f"The ladder gained {min(ladders):.1f} to {max(ladders):.1f} times, {middle:.1f} in the middle"
    return markup.section("Measured in the room", finding, f'<div class="strips">{body}</div>', "wide")


def claims(room: Room, words: Wording) -> str:
    """Which sentences of the course failed."""
    if not room.failed_claims:
        return ""
    rows = [(chapter, claim, str(n)) for chapter, claim, n in room.failed_claims[:_MOST_ROWS]]
    finding = "Claims of the course that a learner's machine contradicted"
    return markup.section("Claims", finding, markup.table(("", "claim", "# learners"), rows), "wide")


def everybody(room: Room, words: Wording) -> str:
    """One row a learner."""
    if not room.people:
        return markup.section(
            "Everybody",
            "Nobody has joined yet",
            "<p>Learners join with <code>dltutorial class join FOLDER</code>.</p>",
            "wide",
        )
    rows = [
        (
            p.name,
            markup.Html(f'<span class="{p.state}">{SIGNS[p.state]} {p.state}</span>'),
            p.chapter or "–",
            "–" if p.idle_min is None else f"{p.idle_min:.0f}",
            str(len(p.passed)),
            f"{p.exercise}, wrong {p.wrong_in_a_row} in a row: {p.problem}" if p.exercise else "",
        )
        for p in room.people
    ]
    head = ("name", "", "chapter", "# minutes since the last record", "# passed", "open exercise")
    table = markup.table(head, rows)
    return markup.section(
        "Everybody",
        markup.plural(len(rows), "learner"),
        f"<details><summary>Show all</summary>{table}</details>",
        "wide",
    )


def unread(room: Room, words: Wording) -> str:
    """What could not be read, and why."""
    if not room.problems:
        return ""
    rows = [(one.file, one.why, _how_much(one.lines), one.begins) for one in room.problems]
    head = ("file", "why", "left out", "the first begins")
    finding = f"{markup.plural(len(rows), 'file')} to look at"
    return markup.section(
        "Records that could not be read, or not be believed", finding, markup.table(head, rows), "wide", "unread"
    )


def _how_much(lines: int | None) -> str:
    return "nothing" if lines is None else markup.plural(lines, "line") if lines else "the whole file"


def _known_to_most(found: Sequence[Any], learners: Callable[[Any], int]) -> list[Any]:
    """At most ``_MOST_ROWS`` of them, those of most learners, in their own order."""
    kept = {id(one) for one in sorted(found, key=learners, reverse=True)[:_MOST_ROWS]}
    return [one for one in found if id(one) in kept]


ALL = (exercises, guesses, machines, claims, everybody, unread)
