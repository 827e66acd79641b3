"""Give a chapter the plain PyTorch files that an earlier chapter writes with ``%%writefile``.

The input is file names. The output is files in the folder of the notebook. These files need nothing of the course.

    scripts.take("train.py")                                          # the file of chapter 01
    scripts.change("train.py", "train_bf16.py", {"old line": "new line"})  # also shows the difference

Source of ``%%writefile``: https://ipython.readthedocs.io, "Built-in magic commands".
"""

import difflib
import inspect
import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import notebooks, show
from dltutorial.errors import CourseError

WRITES = "%%writefile "


def prepare() -> None:
    """Prepare the environment for the programs that this notebook starts, and protect a learner's files.

    ``!python`` becomes the Python of this kernel. Threads that wait give their cores to other threads.
    """
    folder = str(Path(sys.executable).parent)
    search_path = os.environ.get("PATH", os.defpath)
    if folder not in search_path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([folder, search_path])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _guard_writefile()


def _guard_writefile() -> None:
    """From now on ``%%writefile`` keeps a learner's file, as ``take`` does, unless a cell of this kernel wrote it."""
    from IPython import get_ipython
    from IPython.core.magic_arguments import parse_argstring
    from IPython.core.magics.osm import OSMagics

    shell = get_ipython()
    if shell is None:
        return
    original = shell.find_cell_magic("writefile")
    if original is None or hasattr(original, "written_by_cells"):
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
    for name in ("writefile", "file"):
        shell.register_magic_function(writefile, "cell", name)


def written(notebook: Path) -> dict[str, str]:
    """Return the texts of the files that the cells of a notebook write. The keys are the names of the files."""
    files = {}
    for cell in notebooks.read(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith(WRITES):
            name, _, text = source.removeprefix(WRITES).partition("\n")
            files[name.strip()] = text.rstrip("\n") + "\n"
    return files


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
    _show("\n".join(difference), "diff")


def source(*objects: Any) -> None:
    """Show the source of functions and classes of the library."""
    _show("\n".join(inspect.getsource(item) for item in objects), "python")


def _show(text: str, language: str) -> None:
    """Show code with colours."""
    from IPython.display import Code

    show.display(Code(text, language=language))


def _write(file: Path, text: str, written_before: str | None = None) -> None:
    """Write a file. A file with a content other than ``text`` or ``written_before`` is a learner's: rename it first."""
    if file.is_file():
        current = file.read_text(encoding="utf-8", errors="replace")
        if current == text:
            return
        if current != written_before:
            print(f"your own {file.name} is now {_rename(file).name}")
    paths.write_text(file, text)


def _rename(file: Path) -> Path:
    """Rename ``train.py`` to ``train.mine1.py``, or to the next number that is free."""
    for number in itertools.count(1):
        other = file.with_suffix(f".mine{number}{file.suffix}")
        if not other.exists():
            break
    return file.rename(other)
