"""The plain PyTorch files that a chapter writes with %%writefile: for the chapters that go on with them.

In: file names. Out: files in the folder of the notebook, which need nothing of the course.

    scripts.take("train.py")                                          # as chapter 01 writes it
    scripts.change("train.py", "train_bf16.py", {"old line": "new line"})  # and shows the difference
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
    """For the programs that this notebook starts: ``!python`` is this Python, and waiting threads give cores away."""
    here, known = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    if here not in known.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([here, known])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    _guard_writefile()


def _guard_writefile() -> None:
    """From now on ``%%writefile`` keeps a learner's file, as ``take`` does, unless a cell of this kernel wrote it."""
    from IPython import get_ipython
    from IPython.core.magic_arguments import parse_argstring
    from IPython.core.magics.osm import OSMagics

    shell = get_ipython()
    plain = shell and shell.find_cell_magic("writefile")
    if not plain or hasattr(plain, "wrote"):
        return
    wrote: dict[Path, str] = {}

    def writefile(line: str, cell: str) -> None:
        arguments = parse_argstring(OSMagics.writefile, line)
        if arguments.append:
            return plain(line, cell)
        name = arguments.filename.strip("'\"")
        file = Path(name).expanduser().absolute()
        _write(file, cell, wrote.get(file))
        wrote[file] = cell
        print(f"Writing {name}")

    writefile.wrote = wrote  # type: ignore[attr-defined]
    for name in ("writefile", "file"):
        shell.register_magic_function(writefile, "cell", name)


def written(notebook: Path) -> dict[str, str]:
    """The files, by their names, that the cells of a notebook write."""
    cells = ["".join(cell["source"]) for cell in notebooks.read(notebook)["cells"] if cell["cell_type"] == "code"]
    files = [cell.removeprefix(WRITES).partition("\n") for cell in cells if cell.startswith(WRITES)]
    return {name.strip(): text.rstrip("\n") + "\n" for name, _, text in files}


def take(*names: str) -> None:
    """Put the files of these names here, each as the first chapter that writes it does.

    A file of this name that differs is the learner's own. It is kept as ``train.mine1.py``, ``train.mine2.py``, ….

    Raises:
        CourseError: No chapter writes such a file, or it cannot be written here.
    """
    by_chapter = [written(chapter) for chapter in notebooks.chapters()]
    for name in names:
        text = next((files[name] for files in by_chapter if name in files), None)
        if text is None:
            raise CourseError(f"no chapter writes {name!r}; look for {WRITES}in the notebooks")
        _write(Path(name), text)


def change(name: str, into: str, lines: Mapping[str, str]) -> None:
    """Write the file ``name`` with some of its text replaced as the file ``into``, and show the difference.

    A file ``into`` that differs is kept, as by ``take``.

    Raises:
        CourseError: A text to be replaced does not stand there exactly once, or the file cannot be written.
    """
    try:
        before = after = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise CourseError(f"cannot read {name} ({error}); run the cell that writes it again") from error
    for old, new in lines.items():
        if after.count(old) != 1:
            raise CourseError(f"{old!r} stands {after.count(old)} times in {name}, not once; look at the file")
        after = after.replace(old, new)
    _write(Path(into), after)
    _show("\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), name, into, "", "", 1, "")), "diff")


def source(*objects: Any) -> None:
    """Show the source of functions and classes, as it stands in the library."""
    _show("\n".join(inspect.getsource(one) for one in objects), "python")


def _show(text: str, language: str) -> None:
    from IPython.display import Code

    show.display(Code(text, language=language))


def _write(file: Path, text: str, before: str | None = None) -> None:
    """Write a file. If it holds anything but ``text`` or ``before``, it is a learner's, and is renamed first."""
    if file.is_file():
        current = file.read_text(encoding="utf-8", errors="replace")
        if current == text:
            return
        if current != before:
            print(f"your own {file.name} is now {_rename(file).name}")
    paths.write_text(file, text)


def _rename(file: Path) -> Path:
    """Rename ``train.py`` to ``train.mine1.py``, or to the next number that is free."""
    for number in itertools.count(1):
        other = file.with_suffix(f".mine{number}{file.suffix}")
        if not other.exists():
            break
    return file.rename(other)
