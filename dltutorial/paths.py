"""Find the folders of the course, and write a file so that an incomplete file never has the final name.

Each folder has a default place, and an environment variable that sets another place.

    what                                  default                          set by
    simulated data                        ~/.cache/dltutorial/data         DLTUTORIAL_DATA
    the measured peaks of this machine    ~/.cache/dltutorial/machine      XDG_CACHE_HOME
    what torch.compile made               ~/.cache/dltutorial/compiled     TORCHINDUCTOR_CACHE_DIR
    runs: options, metrics, weights       ./runs                           DLTUTORIAL_RUNS
    records, one file per process         <runs>/records                   DLTUTORIAL_RECORDS
"""

import contextlib
import os
import re
import secrets
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from dltutorial.errors import CourseError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PYTHON = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<frozen", "<string>")


def cache_dir() -> Path:
    """Return the folder for files that can be made again, such as measured peaks and simulated data."""
    return (of_variable("XDG_CACHE_HOME") or Path.home() / ".cache") / "dltutorial"


def data_dir() -> Path:
    """Return the folder that holds the simulated data sets, one subfolder each."""
    return of_variable("DLTUTORIAL_DATA") or cache_dir() / "data"


def runs_dir() -> Path:
    """Return the folder that holds the training runs, one subfolder each."""
    return of_variable("DLTUTORIAL_RUNS") or Path("runs")


def records_dir() -> Path:
    """Return the folder of the records, to which each process adds a file of its own."""
    return of_variable("DLTUTORIAL_RECORDS") or runs_dir() / "records"


def of_variable(variable: str) -> Path | None:
    """Return the path in an environment variable, or None if it is not set. ``~`` stands for the home folder."""
    path = os.environ.get(variable)
    return Path(path).expanduser() if path else None


def course_folder(holding: str) -> Path:
    """Find the folder of the course.

    Args:
        holding: A subfolder that is needed, such as "notebooks".

    Returns:
        The nearest folder, from the working folder upwards, that has this subfolder and a ``pyproject.toml``. If no
        such folder exists, the folder that the package is installed from.

    Raises:
        CourseError: None of these folders has the subfolder.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (Path.cwd(), *Path.cwd().parents, package):
        if (folder / holding).is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise CourseError(f"no {holding}/ here or above; run this inside the course's folder (a git clone of it)")


def inside(folder: Path, name: str) -> Path:
    """Return ``folder / name``, and refuse a name that would lead out of the folder, such as "../x".

    Raises:
        CourseError: The name has a separator, starts with a dot, is empty, or is longer than 100 characters.
    """
    if not _NAME.fullmatch(name):
        rule = "at most 100 letters, digits, '.', '_' and '-', the first a letter or digit"
        raise CourseError(f"bad name {name[:120]!r}: {rule}, so that it stays inside its folder; choose another")
    return folder / name


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, to which the caller writes the file.

    When the ``with`` block ends, the temporary file is synced to disk and renamed to ``path``. Therefore a reader finds
    either the old file or the complete new file. After an exception the temporary file is removed.

    Raises:
        CourseError: The file cannot be written, for example because the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        todo = "make room, or choose a folder that you may write to"
        raise CourseError(f"cannot write {path}: {error.strerror or error}; {todo}") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``. It raises the same errors as ``atomic``."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def is_learners(file: str) -> bool:
    """Return whether a source file belongs neither to Python, nor to an installed package, nor to the course.

    Packages may be in folders of several Pythons, for example if the environment uses packages of the system.
    """
    is_installed = "site-packages" in file or "dist-packages" in file
    return not is_installed and not file.startswith((*_PYTHON, str(Path(__file__).parent)))
