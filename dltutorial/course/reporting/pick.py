"""Choose among records: the newest, by machine and preset, and only what is a number.

In: records, oldest first, as plain dictionaries that anybody may have written. Out: what a section shows of them.
"""

import re
import socket
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_SMALL = 1e-200
_PATH = re.compile(r"(?<![\w.:/~])(?:/[\w.+-]+){2,}")


class Place(NamedTuple):
    """Where something was measured; what differs in either is never mixed."""

    machine: str
    preset: str

    def __str__(self) -> str:
        return f"{self.machine}, preset {self.preset}"


def place(record: dict) -> Place:
    """Where a record was made."""
    return Place(record["machine"], record["preset"])


def places(found: Iterable[dict]) -> list[Place]:
    """All places, the one with the newest record first."""
    return list(dict.fromkeys(place(record) for record in reversed(list(found))))


def at(found: Iterable[dict], where: Place) -> list[dict]:
    """The records of one place."""
    return [record for record in found if place(record) == where]


def of(found: Iterable[dict], kind: str, chapter: str | None = None) -> list[dict]:
    """The records of a kind, perhaps of one chapter only."""
    return [r for r in found if r["kind"] == kind and (chapter is None or r["chapter"] == chapter)]


def measured(found: Iterable[dict], chapter: str, what: str) -> list[dict]:
    """The measurements of a chapter whose name begins with ``what`` and whose value is a positive number."""
    rows = of(found, "measurement", chapter)
    return [r for r in rows if r["what"].startswith(what) and is_positive(r.get("value"))]


def named(found: Iterable[dict]) -> dict[str, dict]:
    """What was measured → its last record, at the place of the last of all."""
    rows = list(found)
    return {row["what"]: row for row in (at(rows, place(rows[-1])) if rows else [])}


def latest(found: Iterable[dict]) -> list[tuple[dict, list[dict]]]:
    """The last record of each thing, with all of its records; what differs in machine or preset is another thing."""
    groups: dict[tuple, list[dict]] = {}
    for record in found:
        groups.setdefault((record["chapter"], record["what"], *place(record)), []).append(record)
    return [(group[-1], group) for group in sorted(groups.values(), key=lambda group: group[0]["chapter"])]


def is_positive(value: Any) -> bool:
    """Whether a record's value is a positive number that can be divided by and drawn."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _SMALL < value < 1 / _SMALL


def factors(ratios: Iterable[Any]) -> list[float]:
    """By what factor each ratio is off, at least 1; what is no ratio is passed over."""
    return [max(ratio, 1 / ratio) for ratio in ratios if is_positive(ratio)]


def positives(mapping: Any) -> dict[str, float]:
    """The entries of a record's mapping that are positive numbers; nothing if it is no mapping."""
    return {str(k): v for k, v in mapping.items() if is_positive(v)} if isinstance(mapping, dict) else {}


def private(found: Iterable[dict]) -> list[dict]:
    """The records without what should not leave this machine: of an absolute path the last part, no host's name."""
    host = socket.gethostname()
    named_host = re.compile(rf"\b{re.escape(host)}\b") if len(host) > 3 and host != "localhost" else None

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            value = value.encode("utf-8", "replace").decode()  # half a character cannot be written
            value = _PATH.sub(lambda path: "…/" + path[0].rpartition("/")[2], value)
            return named_host.sub("this host", value) if named_host else value
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return [clean(record) for record in found]


def short(words: Any, most: int = 44) -> str:
    """Words in one line that fits beside an axis."""
    words = " ".join(str(words).split())
    return words if len(words) <= most else words[: most - 1] + "…"


def joined(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
