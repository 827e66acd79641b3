"""``dltutorial book``: from executed notebooks to a folder of pages that needs neither network nor server.

In: the course's folder, a run of its notebooks. Out: ``build/book/html``; it appears when it is whole: every link
followed, no warning of Sphinx left.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dltutorial import machine, paths
from dltutorial.course import notebooks, runner
from dltutorial.course.book import chapters, links, sources
from dltutorial.errors import CourseError

_NEEDED = ("sphinx", "myst_nb", "sphinx_book_theme")
_MARK = "objects.inv"  # every site of Sphinx has one


def build(executed: Path | None = None, out: Path | None = None, partial: bool = False, run: bool = False) -> Path:
    """Make the book; returns the path of its first page.

    Args:
        executed: a folder with executed notebooks; None: the newest of each chapter under the runs folder.
        out: the folder of the site; None: ``build/book/html`` in the course's folder.
        partial: print chapters that were not executed without their results.
        run: where the runs do not suffice, run the course first.

    Raises:
        CourseError: Sphinx is missing, a chapter cannot be printed, ``out`` holds something else, Sphinx warns, or a
            link leads nowhere.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CourseError(f"the book needs {', '.join(missing)}; run: pip install -e .[book]")
    root = paths.course_folder("book")
    target = Path(out).absolute() if out else root / "build" / "book" / "html"
    if target.exists() and not (target / _MARK).is_file() and (target.is_file() or any(target.iterdir())):
        raise CourseError(f"{target} holds something that is not a book; choose another folder with --out")
    printed = _chosen(executed, partial, run)
    _make(root, printed, target)
    return target / "index.html"


def _chosen(executed: Path | None, partial: bool, run: bool) -> list[chapters.Printed]:
    """The chapters to print; with ``run`` the course runs where they are not there."""
    there = notebooks.chapters()
    if executed is not None and not Path(executed).is_dir():
        raise CourseError(f"no folder {executed}; name one that dltutorial run has made")
    try:
        return chapters.choose(there, [Path(executed)] if executed else runs(), partial)
    except CourseError as problem:
        if not run or executed:
            raise
        print(f"{str(problem).partition('; run:')[0]}: running the course first", file=sys.stderr)
    if runner.run():
        raise CourseError("the course did not run through; mend what failed, or give --partial")
    return chapters.choose(there, runs(), partial)


def runs() -> list[Path]:
    """The folders of the course's runs, newest first."""
    found = [file.parent for file in paths.runs_dir().absolute().glob("*/run.json")]
    return sorted(found, key=lambda folder: (folder / "run.json").stat().st_mtime, reverse=True)


def _make(root: Path, printed: Sequence[chapters.Printed], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".book-", dir=target.parent) as scratch:
            source, site = Path(scratch, "source"), Path(scratch, "html")
            sources.write(root, printed, source)
            _sphinx(source, site)
            _check(site)
            _write_outside(site)
            if target.exists():
                target.rename(Path(scratch, "old"))
            site.rename(target)
    except OSError as error:
        raise CourseError(f"cannot write {target}: {error.strerror}; choose another folder with --out") from error


def _sphinx(source: Path, site: Path) -> None:
    """Run Sphinx: nitpicky, warnings are errors, a process for each core."""
    options = ["-q", "-n", "-W", "-j", str(max(1, machine.cores())), "-b", "html", "-d", str(source.with_name("read"))]
    # The documented modules see the process as a reader's machine would: no screen, one thread.
    env = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(site)]
    status, told = _alone(command, env)
    if status:
        lines = [line.replace(f"{source}{os.sep}", "") for line in told.splitlines() if line.strip()]
        print("\n".join(lines), file=sys.stderr)
        first = next((line for line in lines if "WARNING" in line or "ERROR" in line), lines[0] if lines else "")
        raise CourseError(f"Sphinx could not make the book: {first}; mend it, then run again")


def _alone(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Exit status and errors of a program; however this ends, Sphinx's own workers end with it."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes) as program:
        try:
            told = program.communicate()[1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return program.returncode, told


def _check(site: Path) -> None:
    wrong = links.problems(site)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        raise CourseError(f"{len(wrong)} places of the book are wrong, the first is {wrong[0]}; mend them")


def _write_outside(site: Path) -> None:
    """The addresses outside, for whoever has a network to try them."""
    found = links.outside(site)
    lines = [f"{address}\t{', '.join(dict.fromkeys(pages))}" for address, pages in found.items()]
    (site / "addresses.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
