"""The half day and the whole day: what is done when, in minutes; ``INSTRUCTORS.md`` shows the same as tables.

In: nothing. Out: ``SCHEDULES``. A chapter's and an exercise's minutes are those of its notebook's metadata, a
teacher's estimate of reading and doing; a test compares them. What a machine needs meanwhile is measured: ``seats``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Slot:
    """Some minutes of a day: a chapter, its exercise, or neither (a break, a talk)."""

    minutes: int
    what: str
    chapter: str = ""
    exercise: bool = False


def _chapter(number: str, minutes: int) -> Slot:
    return Slot(minutes, f"chapter {number}", number)


def _exercise(number: str, minutes: int) -> Slot:
    return Slot(minutes, f"exercise of chapter {number}", number, exercise=True)


SCHEDULES: Mapping[str, tuple[Slot, ...]] = MappingProxyType({
    "half-day": (
        Slot(10, "arrive, open the course, join the class"),
        _chapter("00", 30),
        _exercise("00", 10),
        _chapter("02", 45),
        Slot(15, "break"),
        _chapter("03", 45),
        _chapter("07", 45),
        _exercise("07", 25),
        Slot(15, "what the room measured, questions"),
    ),
    "one-day": (
        Slot(15, "arrive, open the course, join the class"),
        _chapter("00", 30),
        _exercise("00", 10),
        _chapter("01", 45),
        Slot(15, "break"),
        _chapter("02", 45),
        _chapter("03", 45),
        Slot(60, "lunch"),
        _chapter("07", 45),
        _chapter("08", 45),
        Slot(15, "break"),
        _exercise("08", 30),
        _chapter("09", 45),
        Slot(10, "break"),
        _chapter("11", 45),
        Slot(15, "what the room measured, questions"),
    ),
})  # fmt: skip


def chapters(name: str) -> list[str]:
    """The chapters of a schedule, in order."""
    return list(dict.fromkeys(slot.chapter for slot in SCHEDULES[name] if slot.chapter))


def minutes(name: str) -> int:
    """From the first minute to the last, breaks included."""
    return sum(slot.minutes for slot in SCHEDULES[name])
