"""A run's folder has one owner at a time: a lock that the system takes back when its owner dies, however it dies.

In: the folder, which need not be there yet. Out: a context, in which all others are refused. The lock is
``.<name>.lock`` beside the folder, so that it outlasts a folder that is overwritten; it goes with its owner, and one
that a kill has left binds nobody. It is POSIX's, man 2 fcntl: it holds between the nodes of a shared file system (NFS;
Lustre mounted with ``flock``), and a loading process that was forked does not keep it alive, as it would ``flock``'s.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from dltutorial.errors import CourseError

_WAIT_S = 1.0  # so long an owner that was killed may take to be gone
_HELD: dict[Path, FileIO] = {}  # by this very process, to which the system would give them again
_FOLDERS: dict[Path, int] = {}  # what they lock, as soon as it is there: open, so that no other has its inode
_NO_LINKS = ("checkpoints", "tensorboard", "wandb", "progress.jsonl", "status.json")  # a write would go through one


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own a run's folder inside ``with``. Where files cannot be locked, a line warns that nobody else is refused.

    Raises:
        CourseError: it has an owner, maybe in this process; nothing can be written beside it.
    """
    file = _beside(folder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = None if file in _HELD else _take(file)
    except OSError as error:
        raise CourseError(f"cannot write {file}: {error.strerror}; choose a folder that you may write to") from error
    if lock is None:
        who = "this process" if file in _HELD else _about(file).get("owner", "another process")
        why = "wait for its end, or choose another run name"
        raise CourseError(f"{folder} is being trained by {who}; {why} (should that machine be gone: move {file} away)")
    _HELD[file] = lock
    try:
        yield
    finally:
        del _HELD[file]
        if Path(folder) in _FOLDERS:
            os.close(_FOLDERS.pop(Path(folder)))
        with contextlib.suppress(OSError):  # in a folder that is read-only by now; a lock that is left binds nobody
            if _is_there(lock):
                file.unlink(missing_ok=True)
        lock.close()


def check(folder: Path, noted: dict[Path, int] | None = None) -> None:
    """Look at a folder before a write. ``noted``: where a rank that owns none notes that it was there once.

    Raises:
        CourseError: this process does not own it; it was exchanged; a link leads out of it.
    """
    folder, known, is_owner = Path(folder), _FOLDERS if noted is None else noted, noted is None
    lock, there = _HELD.get(_beside(folder)), folder.exists()
    if there and folder not in known:
        known[folder] = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY)) if is_owner else 1
    if is_owner and (lock is None or not _is_there(lock) or _lock(lock) is False):  # this process may have read it
        raise CourseError(f"{folder} has another owner by now; this run ends and leaves it alone")
    is_another = there and is_owner and not os.path.samestat(folder.stat(), os.fstat(known[folder]))
    if there != (folder in known) or is_another:  # which it is another node may learn late
        raise CourseError(f"{folder} was moved away, or is another by now; this run ends and leaves it alone")
    refuse_links(folder)


def refuse_links(folder: Path) -> None:
    """Raises: CourseError: what is written in a run's folder would go elsewhere."""
    for link in (place for name in _NO_LINKS if (place := folder / name).is_symlink() or place.is_fifo()):
        told = f"{link} is a {'pipe' if link.is_fifo() else 'link'}, and what lies behind it may be another run's"
        raise CourseError(f"{told}; copy that (cp -r) in place of it")


def is_owned(folder: Path) -> bool:
    """Whether a living process owns a run's folder; yes also where that cannot be known."""
    file = _beside(folder)
    if file in _HELD or not file.exists():
        return file in _HELD
    with contextlib.suppress(OSError), FileIO(file, "r+") as lock:
        return not _lock(lock)
    return True


@contextlib.contextmanager
def beating(folder: Path, every_s: float = 5.0) -> Iterator[None]:
    """Inside ``with`` the owner gives signs of life, for ``silent_s``: as long as its process is not stopped."""
    file, ended = _beside(folder), threading.Event()

    def beat() -> None:
        while not ended.wait(every_s):
            with contextlib.suppress(OSError):
                os.utime(file)  # to open it, and close it, would give the lock away

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def silent_s(folder: Path) -> float:
    """Seconds since an owner's last sign of life: one that was stopped, or hangs, still holds its lock."""
    with contextlib.suppress(OSError):
        return time.time() - _beside(folder).stat().st_mtime
    return 0.0


def _beside(folder: Path) -> Path:
    real = Path(os.path.realpath(folder))
    return real.with_name(f".{real.name}.lock")


def _take(file: Path) -> FileIO | None:
    """The open lock; None if somebody keeps it."""
    me = {"owner": f"process {os.getpid()} on {socket.gethostname()}", "job": os.environ.get("SLURM_JOB_ID")}
    count, give_up_s = os.environ.get("SLURM_RESTART_COUNT", ""), time.monotonic() + _WAIT_S
    starts = int(count) if count.isdecimal() else 0
    while time.monotonic() < give_up_s:
        lock = FileIO(file, "a+", opener=_open_own)
        got = _lock(lock)
        lock.seek(0)  # not by its name: to close it once more would give the lock away
        if got is not False and (text := lock.read(2**16)) and b'"owner"' not in text:
            lock.close()
            raise CourseError(f"{file} holds something else than a lock; rename it, or choose another run name")
        if got is not False and _is_there(lock):  # its last owner removes it
            if got is None:
                print(f"{file} cannot be locked on this file system: start no run of this name twice", file=sys.stderr)
            with contextlib.suppress(OSError):  # on a full disk it is a lock all the same
                lock.truncate(0)
                lock.write(json.dumps(me | {"starts": starts}).encode())
            return lock
        lock.close()
        owner = _about(file)
        if me["job"] and owner.get("job") == me["job"] and owner.get("starts", 0) < starts:
            file.unlink(missing_ok=True)  # Slurm has ended the job before it started it again, or lost its node
        else:
            time.sleep(0.05)
    return None


def _open_own(name: str, flags: int) -> int:
    """Open a file that nothing else than this name leads to. OSError: a link, a pipe, a file of another name."""
    handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return handle
    os.close(handle)
    raise OSError(errno.EMLINK, "it is a link, or no regular file: move it away")


def _lock(lock: FileIO) -> bool | None:
    """Whether the lock of an open file was to be had; None where there are no locks."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if isinstance(error, BlockingIOError | PermissionError) else None
    return True


def _is_there(lock: FileIO) -> bool:
    """Whether an open file has still its name: a link if another node removed it, the same file if one on this did."""
    with contextlib.suppress(OSError):
        found = os.fstat(lock.fileno())
        return found.st_nlink > 0 and os.path.samestat(found, Path(str(lock.name)).stat())
    return False


def _about(file: Path) -> dict:
    """What the owner says of itself."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return {} | json.loads(file.read_text(encoding="utf-8"))
    return {}
