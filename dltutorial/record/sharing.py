"""What a learner shares with a class: few fields of some records, in one file of a folder that the class shares.

In: records as they are written, and the learner's own setting (``dltutorial class join``); without it, nothing.
Out: lines of ``FOLDER/PSEUDONYM.jsonl`` with the fields of ``FIELDS``: no machine, no path, no answer of the learner's.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dltutorial import errors, paths
from dltutorial.errors import CourseError

# Kind of record → what is shared of it, beside time, chapter and kind.
FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "check": ("what", "status", "failed", "hint"),
    "prediction": ("what", "unit", "guess", "touched", "measured"),
    "measurement": ("what", "value", "unit", "preset"),
    "claim": ("what", "status"),
})  # fmt: skip
# Measurements that say something about the machines of a class; all others stay with the learner.
SHARED_MEASUREMENTS: Mapping[str, str] = MappingProxyType({
    "ladder_gain": "the whole ladder, from baseline to best",
    "loader: a thread reads ahead": "the best loader",
    "loader: naive: gzip, 16 samples a chunk": "the naive loader",
    "peak matmul fp32": "matrix product, float32",
    "peak memory copy": "memory",
    "peak disk cold random sample": "disk, cold, one sample at a time",
    "samples_per_s": "training",
})  # fmt: skip
MARK = "user.dltutorial"  # an extended attribute
NOT_YOURS = "{} is gone or not yours any more; join again: dltutorial class leave, then dltutorial class join FOLDER"
MOST_BYTES = 2 * 2**20  # of one learner's file; a day of work has a tenth of that
MOST_TEXT = 240
_PATH = re.compile(r"\S+@\S+|(?<![\w.])(?:~[\w.-]*/\S+|(?:/[\w.@+-]+){2,}/?)|\b[A-Za-z]:\\\S*|\\\\\S+")  # or address


class Membership(NamedTuple):
    """Where a learner shares, under which name; inode and mark of the file that was made then, 0 and "": not noted."""

    folder: Path
    name: str
    inode: int = 0
    mark: str = ""

    @property
    def file(self) -> Path:
        """The learner's own file in the class's folder."""
        return self.folder / f"{self.name}.jsonl"

    def is_mine(self, file: Path | int) -> bool:
        """Whether this file is the one that was made at joining: another may have its name by now, and its inode."""
        about = os.stat(file)  # noqa: PTH116 - of a handle, too
        try:
            mark = os.getxattr(file, MARK).decode()
        except (OSError, AttributeError) as error:  # there is none; or none is seen from here, as on another node
            mark = "" if getattr(error, "errno", None) == errno.ENODATA else self.mark
        return about.st_uid == os.getuid() and self.inode in (0, about.st_ino) and self.mark in ("", mark)


def setting_file() -> Path:
    """Where the membership is noted; no such file: nothing is shared."""
    return paths.settings_dir() / "class.json"


def membership() -> Membership | None:
    """The class this learner has joined, if any. CourseError: the setting is damaged."""
    try:
        file = setting_file()
    except CourseError:  # without a home nobody can have joined
        return None
    try:
        about = paths.from_json(paths.read_text(file, limit=2**16))
        if b"\0" in os.fsencode(about["folder"]):  # half a character raises, too
            raise ValueError
        name = paths.inside(Path(about["folder"]), about["name"]).name
        return Membership(Path(about["folder"]), name, int(about.get("inode", 0)), str(about.get("mark", "")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, CourseError) as error:
        raise CourseError(f"{file} cannot be read; leave it with dltutorial class leave, and join again") from error


def switched_off() -> bool:
    """Whether this process shares nothing although its learner has joined a class."""
    return os.environ.get("DLTUTORIAL_CLASS", "").strip().lower() in ("off", "0", "n", "no", "none", "false")


def share(record: Mapping[str, Any]) -> None:
    """Append what the class may see of ``record``; a folder that cannot be written gives a warning, never an error."""
    try:
        if not switched_off() and (member := membership()) and (line := shared_line(record)):
            _append(member, line)
    except (CourseError, OSError) as error:
        told = error.strerror if isinstance(error, OSError) else str(error)
        errors.warn(f"your records are kept, but not shared with the class ({told}); see dltutorial class status")


def shared_line(record: Mapping[str, Any]) -> str | None:
    """The line that a class sees of a record; None: nothing of it."""
    kind = str(record.get("kind"))
    other = kind == "measurement" and record.get("what") not in SHARED_MEASUREMENTS
    if other or kind not in FIELDS or not re.fullmatch("[0-9]{2}|capstone", str(record.get("chapter"))):
        return None
    line = {"time": str(record["time"])[:19] + "Z", "chapter": record["chapter"], "kind": kind}
    line |= {key: _harmless(record.get(key)) for key in FIELDS[kind]}
    if kind == "claim" and record.get("status") not in ("failed", "otherwise"):
        del line["what"]  # that the learner got there is enough
    compared = all(not isinstance(line.get(key), str) for key in ("guess", "measured", "value"))  # NaN is text
    return json.dumps(line, ensure_ascii=False) + "\n" if compared else None


def _append(member: Membership, line: str) -> None:
    """Append to the learner's own file: never to another, through a link, into a pipe, or beyond ``MOST_BYTES``."""
    flags, file = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), member.file
    if member.folder.is_dir() and not os.path.lexists(file):  # else a shared disk may be away
        raise CourseError(NOT_YOURS.format(file))
    handle = os.open(file, flags)
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or not member.is_mine(handle):
            raise CourseError(NOT_YOURS.format(file))
        if about.st_size + len(line.encode()) > MOST_BYTES:
            raise CourseError(f"{file.name} has reached {MOST_BYTES >> 20} MiB")
        paths.append_line(handle, line.encode(), file)
    finally:
        os.close(handle)


def _harmless(value: Any) -> Any:
    """Text without paths and not long; numbers and truth values as they are; nothing else."""
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()  # half a character could not be written
        return _PATH.sub("…", value)[:MOST_TEXT]
    return value if isinstance(value, (bool, int, float)) else None
