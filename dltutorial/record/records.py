"""Records: one JSON line per measurement, appended by one writer, read back as plain dictionaries.

Keys: ``time`` (ISO 8601, UTC), ``chapter``, ``what``, ``value``, ``unit``, ``kind`` (measurement, claim,
prediction, check, run), ``preset``, ``machine``, ``versions``, and whatever a writer adds. A learner who has joined a
class shares a part of each (``sharing``).
"""

import datetime
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import machine, paths
from dltutorial.errors import CourseError
from dltutorial.record import sharing

_KEYS = ("time", "chapter", "what", "kind", "preset", "machine")
_MOST_CHARACTERS = 2**24  # of a line: a record has some hundreds


@dataclass(frozen=True)
class Writer:
    """Appends records of one chapter, made under one preset, to one file (created when first written to)."""

    chapter: str
    preset: str
    file: Path | None = None

    def write(self, what: str, value: Any = None, unit: str = "", *, kind: str = "measurement", **more: Any) -> dict:
        """Append one record, whole, and return it; any number of writers may share a file.

        Raises:
            CourseError: the file cannot be written.
        """
        record = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"), "chapter": self.chapter,
            "what": what, "value": _plain(value), "unit": unit, "kind": kind, "preset": self.preset,
            "machine": machine.label(), "versions": machine.versions(),
            **{key: _plain(item) for key, item in more.items()},
        }  # fmt: skip
        path = self.file or paths.records_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                paths.append_line(handle, (json.dumps(record, allow_nan=False) + "\n").encode(), path)
            finally:
                os.close(handle)
        except OSError as error:
            hint = "make room, or set DLTUTORIAL_RECORDS to a file you may write"
            raise CourseError(f"cannot write records to {path}: {error.strerror}; {hint}") from error
        if self.file is None:
            sharing.share(record)
        return record


def read(file: Path) -> Iterator[dict]:
    """Yield the records of a file in order; a last line cut short by a kill is passed over.

    Raises:
        CourseError: there is no such file, it is not text, or a line inside it is not a record.
    """
    try:
        lines = paths.read_text(file).split("\n")
    except OSError as error:
        raise CourseError(f"cannot read records {file}: {error.strerror}; run a chapter first") from error
    except UnicodeDecodeError as error:
        raise CourseError(f"{file} is not a file of records (not text); give the path of a records.jsonl") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = paths.from_json(line) if len(line) <= _MOST_CHARACTERS else None
        except ValueError:
            if number == len(lines):
                return
            record = None
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in _KEYS):
            raise CourseError(f"{file}, line {number} is not a record; remove that line")
        yield record


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's own; NaN and infinities as text, since JSON has none."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
