"""One line of a class's folder: either an ``Event``, or the reason why it is none.

In: bytes that anybody may have written. Out: values whose type, size and range are known; text of printable characters.
Nothing is executed, and nothing here knows HTML: whoever shows an event escapes it.
"""

import datetime
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from dltutorial.record import sharing

LONGEST_LINE = 4096
_MOST = 1e18  # FLOP/s of any machine here, and of any guess
_STATUSES = {
    "check": ("passed", "wrong", "not attempted"),
    "claim": ("shown", "failed", "otherwise", "not shown here"),
}


class BadLine(ValueError):
    """A line is no event; the message says why, in a few words."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing a learner did.

    Attributes:
        at_s: when, in seconds since 1970.
        chapter: two digits.
        kind: check, prediction, measurement or claim.
        what: name of the exercise, the guess, the measurement; text of a claim that failed.
        status: of a check or a claim.
        failed, hint: of a wrong check: the case, and the misconception where it is known.
        guess, measured, unit, touched: of a prediction; touched: the learner changed the default.
        value, preset: of a measurement (which has a unit, too).
    """

    at_s: float
    chapter: str
    kind: str
    what: str = ""
    status: str = ""
    failed: str = ""
    hint: str = ""
    unit: str = ""
    preset: str = ""
    guess: float | None = None
    measured: float | None = None
    value: float | None = None
    touched: bool = False


def read(line: bytes, now_s: float) -> Event:
    """The event in a line.

    Args:
        line: without its newline.
        now_s: the present; nothing has happened after it, clocks that go wrong by a day excepted.

    Raises:
        BadLine: it holds none.
    """
    if len(line) > LONGEST_LINE:
        raise BadLine(f"{len(line):,} bytes long")
    try:
        found = json.loads(line.decode(), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise BadLine("not UTF-8") from None
    except RecursionError:
        raise BadLine("nested too deeply") from None
    except ValueError as error:
        raise BadLine(str(error) if isinstance(error, BadLine) else "not JSON") from None
    if not isinstance(found, dict):
        raise BadLine("not a record")
    kind = found.get("kind")
    if not isinstance(kind, str) or kind not in sharing.FIELDS:
        raise BadLine("of no kind that is shared")
    chapter = _text(found, "chapter")
    if not re.fullmatch(r"[0-9]{2}", chapter):
        raise BadLine("names no chapter")
    return Event(_time(found, now_s), chapter, kind, **_READERS[kind](found))


def printable(text: str) -> str:
    """``text`` with everything that is not printed, line ends and changes of direction included, made visible."""
    if text.isprintable():  # quick, and the usual case
        return text
    return "".join(c if c.isprintable() else "�" for c in text)


def _check(found: dict) -> dict[str, Any]:
    status = _status(found, "check")
    told = {key: _text(found, key) for key in ("failed", "hint")} if status == "wrong" else {}
    return {"what": _name(found), "status": status, **told}


def _prediction(found: dict) -> dict[str, Any]:
    touched = found.get("touched")
    if not isinstance(touched, bool):
        raise BadLine("touched is no truth value")
    numbers = {key: _number(found, key) for key in ("guess", "measured")}
    return {"what": _name(found), "unit": _text(found, "unit"), "touched": touched, **numbers}


def _measurement(found: dict) -> dict[str, Any]:
    what = _name(found)
    if what not in sharing.SHARED_MEASUREMENTS:
        raise BadLine("a measurement that is not shared")
    words = {key: _text(found, key) for key in ("unit", "preset")}
    return {"what": what, "value": _number(found, "value"), **words}


def _claim(found: dict) -> dict[str, Any]:
    status = _status(found, "claim")
    return {"what": _name(found) if status == "failed" else "", "status": status}


_READERS = {"check": _check, "prediction": _prediction, "measurement": _measurement, "claim": _claim}


def _time(found: dict, now_s: float) -> float:
    text = _text(found, "time")
    try:
        at = datetime.datetime.fromisoformat(text)
        at_s = at.timestamp() if at.tzinfo else math.nan
    except (ValueError, OverflowError, OSError):
        at_s = math.nan
    if not 1.5e9 < at_s < now_s + 86_400:
        raise BadLine("at no possible time")
    return at_s


def _status(found: dict, kind: str) -> str:
    status = _text(found, "status")
    if status not in _STATUSES[kind]:
        raise BadLine("of no known status")
    return status


def _name(found: dict) -> str:
    return _text(found, "what") or _fail("has no name")


def _text(found: dict, key: str) -> str:
    text = found.get(key)
    if not isinstance(text, str):
        raise BadLine(f"{key} is no text")
    if len(text) > sharing.MOST_TEXT:
        raise BadLine(f"{key} has {len(text):,} characters")
    return printable(text)


def _number(found: dict, key: str) -> float:
    value = found.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BadLine(f"{key} is no number")
    if not abs(value) <= _MOST:  # also NaN; an integer of any length can be compared
        raise BadLine(f"{key} is an absurd number")
    return float(value)


def _no_number(word: str) -> None:
    raise BadLine(f"{word} is no number")


def _fail(why: str) -> str:
    raise BadLine(why)
