"""Where things live on this machine, how files are written so that none is ever half there, and read so that all end.

| what | default | set by |
|---|---|---|
| simulated data | ``~/.cache/dltutorial/data`` | ``DLTUTORIAL_DATA`` |
| what a machine was measured to do | ``~/.cache/dltutorial/machine`` | ``XDG_CACHE_HOME`` |
| kernels that torch compiled | ``~/.cache/dltutorial/compiled`` | ``TORCHINDUCTOR_CACHE_DIR`` |
| runs: recipes, events, weights | ``./runs`` | ``DLTUTORIAL_RUNS`` |
| records, one file per process | ``<runs>/records`` | ``DLTUTORIAL_RECORDS`` |
| which class a learner has joined | ``~/.config/dltutorial`` | ``XDG_CONFIG_HOME`` |
"""

import contextlib
import errno
import fcntl
import functools
import itertools
import json
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from dltutorial.errors import CourseError

_tell_once = functools.cache(lambda line: print(line, file=sys.stderr))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PATIENCE_S = 5.0  # for a lock that is held while a line is written
_IMPATIENT: set[Path] = set()  # files whose lock somebody has kept for longer


def cache_dir() -> Path:
    """The folder for what can be made again: measured peaks, simulated data. CourseError: as ``settings_dir``."""
    return _of_user("XDG_CACHE_HOME", ".cache")


def settings_dir() -> Path:
    """The folder for what a person has chosen, and what cannot be made again. CourseError: this user has no home."""
    return _of_user("XDG_CONFIG_HOME", ".config")


def _of_user(variable: str, place: str) -> Path:
    named = of_variable(variable)  # one that is relative is to be ignored: specifications.freedesktop.org/basedir-spec
    try:
        return (named if named and named.is_absolute() else Path.home() / place) / "dltutorial"
    except RuntimeError:
        todo = f"set {variable}, or for data DLTUTORIAL_DATA, to a folder that you may write to"
        raise CourseError(f"this user has no home folder; {todo}") from None


def data_dir() -> Path:
    """The folder that holds the simulated data sets, one subfolder each."""
    return of_variable("DLTUTORIAL_DATA") or cache_dir() / "data"


def stands_somewhere() -> None:
    """Raises: CourseError: the working folder has been removed."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise CourseError("the folder that you are in is gone; cd into one that is there, then again") from None


def runs_dir() -> Path:
    """The folder that holds the training runs, one subfolder each."""
    return of_variable("DLTUTORIAL_RUNS") or Path("runs")


def records_dir() -> Path:
    """The folder of the records, to which each process adds a file of its own."""
    return of_variable("DLTUTORIAL_RECORDS") or runs_dir() / "records"


def of_variable(variable: str) -> Path | None:
    """The path in a variable of the environment, where no shell may have expanded a ``~``; None if it names none."""
    given = os.environ.get(variable)
    return Path(os.path.expanduser(given)) if given else None  # noqa: PTH111 - it leaves what it cannot expand


def course_folder(holding: str) -> Path:
    """The course's own folder: the nearest from here upwards with a ``holding`` of this user's, else the package's.

    What others have put into a folder that all may write, as a class's, is no course: its notebooks would be executed.

    Raises:
        CourseError: there is none, or one that this user is in is not to be taken.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (Path.cwd(), *Path.cwd().parents, package):
        is_course = (folder / holding).is_dir() and (folder / "pyproject.toml").is_file()
        if is_course and (folder == package or (folder / holding).lstat().st_uid == os.getuid()):
            if folder != package and ((folder / holding).stat().st_mode | folder.stat().st_mode) & stat.S_IWOTH:
                raise CourseError(f"everybody may write to {folder}, so no course is taken from there: chmod -R o-w it")
            return folder
    raise CourseError(f"no {holding}/ here or above; run this inside the course's folder (a git clone of it)")


def inside(folder: Path, name: str) -> Path:
    """``folder / name``, for a name that cannot leave the folder.

    Raises:
        CourseError: the name has a separator, starts with a dot, is empty or longer than 100 characters.
    """
    if name in ("records.jsonl", "report.html", "class.html"):
        raise CourseError(f"{name} is a file's name here; choose another")
    if not _NAME.fullmatch(name):
        may = "at most 100 letters, digits, '.', '_' and '-', the first a letter or digit"
        raise CourseError(f"bad name {name[:120]!r}: {may}, so that it stays inside its folder; choose another")
    return folder / name


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these environment variables inside ``with``, for processes that start there; then they are as before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def atomic(path: Path, before: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced to disk and takes the name ``path``.

    A reader sees the whole new file or the old state, never a half-written one. On any exception, an interrupt
    included, the temporary file is removed. Right before it takes the name ``before`` is called, and may raise.

    Raises:
        CourseError: the folder cannot be written, or the file cannot take its name (a folder has it).
    """
    path = Path(path)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    try:
        if path.exists() and not path.is_file():  # even a device would give its name away
            raise CourseError(f"cannot write {path}: it is a folder, a pipe or a device; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise CourseError(f"cannot write {path}: {error.strerror}; choose a folder that you may write to") from error
    try:
        yield temporary
        try:
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            before()
            temporary.replace(path)
        except OSError as error:
            raise CourseError(f"cannot write {path}: {error.strerror}; make room, or choose another name") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, before: Callable[[], None] = lambda: None) -> None:
    """Write ``text`` to ``path``, whole or not at all; ``before`` and what is raised: as in ``atomic``."""
    try:
        with atomic(path, before) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CourseError(f"cannot write {path}: {error.strerror}; make room, then run again") from error


def replace_text(file: Path, was: str | None, new: str, otherwise: str = "run this again") -> None:
    """Write ``new`` to ``file`` if it still holds ``was``, as ``held`` had it, or nothing is there by now.

    Raises:
        CourseError: it was saved meanwhile and stays, and ``otherwise`` is to be done; or as ``write_text``.
    """

    def same() -> None:
        if os.path.lexists(file) and (was is None or held(file) != was):
            raise CourseError(f"{file} was saved just now, and stays; {otherwise}")

    write_text(file, new, same)


def keep_others(file: Path, is_own: Callable[[str], bool], what: str) -> None:
    """CourseError: to write ``file`` would replace anything but an earlier one of its kind, which its text tells."""
    with contextlib.suppress(OSError, ValueError):  # a folder, a pipe, no text
        if not file.exists() or is_own(read_text(file)):
            return
    raise CourseError(f"{file} is no {what} and stays as it is; give another name")


def set_aside(file: Path) -> Path:
    """Rename ``x.py`` to ``x.mine1.py``, or the next free number; returns that path. CourseError: no right to."""
    is_folder = file.is_dir() and not file.is_symlink()
    try:
        for n in itertools.count(1):
            other = file.with_suffix(f".mine{n}{file.suffix}")
            with contextlib.suppress(FileExistsError):  # a name is taken first: another process may want the same one
                other.mkdir() if is_folder else other.touch(exist_ok=False)
                break
        try:
            return file.rename(other)
        except OSError:
            other.rmdir() if is_folder else other.unlink()
            raise
    except OSError as error:
        raise CourseError(f"cannot keep your own {file} ({error.strerror}); rename it, then again") from error


def append_line(handle: int, line: bytes, file: Path) -> None:
    """Append a line to ``file``, open for reading and appending: all of it or nothing, whoever else appends.

    Raises:
        OSError: it cannot be written, such as on a full disk, or is no regular file.
    """
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, "a pipe or device, no regular file")
    _lock(handle, file)
    about, written = os.fstat(handle), 0
    is_torn = about.st_size > 0 and os.pread(handle, 1, about.st_size - 1) != b"\n"  # by a kill
    whole = b"\n" * is_torn + line
    try:
        while written < len(whole):  # a disk that fills takes a part; only the next call says why
            written += os.write(handle, whole[written:])
    except BaseException:
        if os.fstat(handle).st_size == about.st_size + written:  # nobody else has written since
            os.ftruncate(handle, about.st_size)
        raise


def _lock(handle: int, file: Path) -> None:
    """Lock an open file until it is closed. Where that cannot be had, a line says so: no measurement is lost for it."""
    until_s = time.monotonic() + _PATIENCE_S * (file not in _IMPATIENT)
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                _IMPATIENT.add(file)  # who holds it for ever delays one line, not all
                return _tell_once(f"{file} is kept locked by another process; it is written to all the same")
            time.sleep(0.02)
        except OSError:
            return _tell_once(f"{file} cannot be locked on this file system: let one program at a time write to it")


@contextlib.contextmanager
def locked(folder: Path, waiting: str = "") -> Iterator[None]:
    """Hold ``folder`` alone, by a file ``.lock`` in it; after a second in vain say ``waiting``, who is there."""
    import filelock

    lock, told = filelock.FileLock(folder / ".lock"), f"{waiting}; waiting for it\n" if waiting else ""
    with contextlib.suppress(OSError):  # some shared file systems have no locks; what may not be written says so later
        try:
            lock.acquire(timeout=1)
        except filelock.Timeout:
            print(told, end="", file=sys.stderr, flush=True)
            lock.acquire()
        except PermissionError:  # another user's, who alone can hold it, is waited for
            with (folder / ".lock").open() as theirs:
                try:
                    fcntl.flock(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(told, end="", file=sys.stderr, flush=True)
                    fcntl.flock(theirs, fcntl.LOCK_SH)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def open_regular(file: Path, mode: str = "rb", **how: Any) -> Iterator[IO[Any]]:
    """Open a regular file for reading; OSError for a pipe or a device, which may never end."""
    wait_for_no_writer = getattr(os, "O_NONBLOCK", 0)
    with open(file, mode, opener=lambda path, flags: os.open(path, flags | wait_for_no_writer), **how) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "a pipe or device, no regular file", str(file))
        yield stream


def held(file: Path) -> str | None:
    """All that a regular file holds, exactly: ends of lines, and what is no text. None: there is none to read."""
    with contextlib.suppress(OSError):
        return read_text(file, errors="surrogateescape", newline="")
    return None


def read_text(file: Path, limit: int = 2**30, **how: Any) -> str:
    """The text of a regular file, in UTF-8; a pipe or a device, which may never end, is not read. ``how``: as ``open``.

    Raises:
        OSError: it cannot be read, is no regular file, or is longer than ``limit``; ``strerror`` says which.
        UnicodeDecodeError: it is not text.
    """
    with open_regular(file, "r", encoding="utf-8", **how) as stream:
        if os.fstat(stream.fileno()).st_size > 4 * limit or len(text := stream.read(limit + 1)) > limit:
            raise OSError(errno.EFBIG, f"longer than {limit:,} characters", str(file))
    return text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise json.JSONDecodeError("a name stands twice in it", "", 0)
    return found


def from_json(text: str) -> Any:
    """What a JSON text says. ValueError: it is no JSON, or such that Python does not read it."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("brackets are nested too deep, or a number has thousands of digits") from None
