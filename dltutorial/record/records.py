"""Records: one JSON line per measurement, appended by one writer, read back as plain dictionaries.

Keys: ``time`` (ISO 8601, UTC), ``chapter``, ``what``, ``value``, ``unit``, ``kind`` (measurement, claim,
prediction, check, run), ``preset``, ``machine``, ``versions``, and whatever a writer adds. A learner who has joined a
class shares a part of each (``sharing``).
"""

import datetime
import json
import math
import os
import sys
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
            with open(path, "ab+", buffering=0, opener=lambda file, flags: os.open(file, flags, 0o644)) as stream:
                paths.append_line(stream.fileno(), (json.dumps(record, allow_nan=False) + "\n").encode(), path)
        except OSError as error:
            hint = "make room, or set DLTUTORIAL_RECORDS to a file you may write"
            raise CourseError(f"cannot write records to {path}: {error.strerror}; {hint}") from error
        if self.file is None:
            sharing.share(record)
        return record


def read(file: Path) -> Iterator[dict]:
    """Yield the records of a file in order; what is no JSON, as a crash leaves it, is passed over, and a line says so.

    CourseError: there is no such file, it is not text, it holds no record but other lines, or JSON that is none.
    """
    try:
        lines = paths.read_text(file).split("\n")
    except OSError as error:
        mend = "run a chapter first, or let DLTUTORIAL_RUNS name the folder of its runs"
        raise CourseError(f"cannot read records {file}: {error.strerror}; {mend}") from error
    except UnicodeDecodeError as error:
        raise CourseError(f"{file} is not a file of records (not text); give the path of a records.jsonl") from error
    torn, record, bad = [], None, "{}, line {} is not a record; remove that line"
    for number, line in ((number, line) for number, line in enumerate(lines, 1) if line):
        try:
            record = paths.from_json(line) if len(line) <= _MOST_CHARACTERS else None
        except ValueError:
            torn += [number] * (number < len(lines))  # the last one may just be written
            continue
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in _KEYS):
            raise CourseError(bad.format(file, number))
        yield record
    if torn and record is None:  # another kind of file
        raise CourseError(bad.format(file, torn[0]))
    if torn:
        print(f"dltutorial: {file}, line {torn[0]} cannot be read, so passed over ({len(torn)} such)", file=sys.stderr)


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
