"""Write records, and read them back as plain dictionaries. A record is one JSON line, such as one measurement.

Each process appends to a file of its own, ``<UTC time>-<process id>.jsonl``, in the folder ``paths.records_dir()``.
Therefore no two processes write to the same file, and a process that is killed loses at most its own last line.

A record has these keys: ``time`` (ISO 8601, UTC), ``chapter``, ``what``, ``value``, ``unit``, ``kind`` (measurement,
claim, prediction, check, run), ``preset``, ``machine``, ``versions``, and the keys that the caller adds.
"""

import contextlib
import datetime
import functools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import machine, paths
from dltutorial.errors import CourseError


@dataclass(frozen=True)
class Writer:
    """Appends the records that one chapter makes with one preset.

    Attributes:
        chapter: number of the chapter, such as "03".
        preset: name of the preset.
    """

    chapter: str
    preset: str

    def write(self, what: str, value: Any = None, unit: str = "", *, kind: str = "measurement", **more: Any) -> None:
        """Append one record.

        Args:
            what: what was measured, claimed, predicted or checked.
            value: the result.
            unit: the unit of the result.
            kind: the kind of record.
            more: further keys and their values.

        Raises:
            CourseError: The file cannot be written.
        """
        record = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "chapter": self.chapter,
            "what": what,
            "value": _plain(value),
            "unit": unit,
            "kind": kind,
            "preset": self.preset,
            "machine": machine.label(),
            "versions": machine.versions(),
        }
        record |= {key: _plain(item) for key, item in more.items()}
        line = json.dumps(record, allow_nan=False) + "\n"
        folder = paths.records_dir()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / _file_name(os.getpid()), "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            hint = "make room, or set DLTUTORIAL_RECORDS to a folder that you may write to"
            raise CourseError(f"cannot write records to {folder}: {error.strerror}; {hint}") from error


def read(folder: Path) -> list[dict[str, Any]]:
    """Read the records of all processes.

    Args:
        folder: holds files with the ending ``.jsonl``.

    Returns:
        The records in the order of their times. Lines that are not JSON are skipped, because a process was killed while
        it wrote them. A folder that does not exist has no records.
    """
    result = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                result.append(json.loads(line))
    return sorted(result, key=lambda record: record["time"])


@functools.cache
def _file_name(process_id: int) -> str:
    """The name of this process's file. It is made once per process, because a forked process has another id."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S.%f}-{process_id}.jsonl"


def _plain(value: Any) -> Any:
    """Convert NumPy and torch values to Python's types. NaN and infinity become text, because JSON lacks them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
