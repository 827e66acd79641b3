"""Give a chapter the plain PyTorch files that an earlier chapter writes with ``%%writefile``.

The input is file names. The output is files in the folder of the notebook. These files need nothing of the course.

    scripts.take("train.py")                                          # the file of chapter 01
    scripts.change("train.py", "train_bf16.py", {"old line": "new line"})  # also shows the difference

If a cell writes another text into a file, the next ``import`` in the notebook loads this text. Source of
``%%writefile``: https://ipython.readthedocs.io, "Built-in magic commands".
"""

import difflib
import importlib.util
import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import notebooks, programs, show
from dltutorial.course.notebooks import WRITES, written
from dltutorial.errors import CourseError


def prepare() -> None:
    """Prepare this notebook for the files that it writes and for the programs that it starts.

    ``!python`` becomes the Python of this kernel. Threads that wait give their cores to other threads. The ranks of
    torchrun meet at the loopback address, so the name of this machine need not resolve. A cell stops if its program
    fails. ``%%writefile`` keeps a learner's file, as ``take`` does.
    """
    folder = str(Path(sys.executable).parent)
    search_path = os.environ.get("PATH", os.defpath)
    if folder not in search_path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([folder, search_path])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("PET_LOCAL_ADDR", "127.0.0.1")  # torchrun --local-addr
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        programs.stop_cells_of_failed_programs(shell)
        _guard_writefile(shell)


def _guard_writefile(shell: Any) -> None:
    """From now on ``%%writefile`` keeps a learner's file, unless a cell of this kernel wrote it."""
    from IPython.core.magic_arguments import parse_argstring
    from IPython.core.magics.osm import OSMagics

    original = shell.find_cell_magic("writefile")
    if hasattr(original, "written_by_cells"):
        return
    written_by_cells: dict[Path, str] = {}

    def writefile(line: str, cell: str) -> None:
        arguments = parse_argstring(OSMagics.writefile, line)
        if arguments.append:
            original(line, cell)
            return
        name = arguments.filename.strip("'\"")
        file = Path(name).expanduser().absolute()
        _write(file, cell, written_by_cells.get(file))
        written_by_cells[file] = cell
        print(f"Writing {name}")

    writefile.written_by_cells = written_by_cells  # type: ignore[attr-defined]
    shell.register_magic_function(writefile, "cell", "writefile")


def take(*names: str) -> None:
    """Write files into the working folder, each as the first chapter that writes it does.

    If such a file exists and differs, it is the learner's own. It is renamed to ``train.mine1.py``,
    ``train.mine2.py`` and so on.

    Args:
        *names: The names of the files.

    Raises:
        CourseError: No chapter writes such a file, or it cannot be written here.
    """
    texts: dict[str, str] = {}
    for chapter in notebooks.chapters():
        texts = written(chapter) | texts  # the earlier chapter wins
    for name in names:
        if name not in texts:
            raise CourseError(f"no chapter writes {name!r}; look for {WRITES}in the notebooks")
        _write(Path(name), texts[name])


def change(name: str, into: str, lines: Mapping[str, str]) -> None:
    """Copy a file, replace some of its text in the copy, and show the difference.

    If the file ``into`` exists and differs, it is renamed, as by ``take``.

    Args:
        name: The file that is copied.
        into: The name of the copy.
        lines: The new text for each old text.

    Raises:
        CourseError: The file cannot be read, an old text is not in it exactly once, or the copy cannot be written.
    """
    from IPython.display import Code

    try:
        before = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise CourseError(f"cannot read {name} ({error}); run the cell that writes it again") from error
    after = before
    for old, new in lines.items():
        if after.count(old) != 1:
            raise CourseError(f"{old!r} stands {after.count(old)} times in {name}, not once; look at the file")
        after = after.replace(old, new)
    _write(Path(into), after)
    difference = difflib.unified_diff(before.splitlines(), after.splitlines(), name, into, n=1, lineterm="")
    show.display(Code("\n".join(difference), language="diff"))


def _write(file: Path, text: str, written_before: str | None = None) -> None:
    """Write a file. A file with a content other than ``text`` or ``written_before`` is a learner's: rename it first."""
    if file.is_file():
        current = file.read_text(encoding="utf-8", errors="replace")
        if current == text:
            return
        if current != written_before:
            print(f"your own {file.name} is now {_rename(file).name}")
    paths.write_text(file, text)
    _forget_modules(file.absolute().parent)


def _forget_modules(folder: Path) -> None:
    """Forget the imported modules whose files are in this folder, so that the next import reads the files.

    All of them are forgotten, because one file may import another that has changed.
    """
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and Path(file).parent == folder and name != "__main__":
            # Bytecode has the time of its source in whole seconds, so a second change within one second goes unnoticed.
            Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)
            del sys.modules[name]
    importlib.invalidate_caches()


def _rename(file: Path) -> Path:
    """Rename ``train.py`` to ``train.mine1.py``, or to the next number that is free."""
    for number in itertools.count(1):
        other = file.with_suffix(f".mine{number}{file.suffix}")
        if not other.exists():
            break
    return file.rename(other)
