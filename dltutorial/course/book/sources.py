"""The folder that Sphinx reads: chapters, exercises, reference and pages, at the places they have in the repository.

In: the course's folder and the chosen chapters. Out: a folder. As the layout is that of the repository, a link that
leads somewhere there leads to the same place here.
"""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from dltutorial.course import exercises
from dltutorial.course.book import chapters, pictures, reference, solved, terms

# Pages of the repository that are part of the book where they are there.
PAGES = ("README.md", "TROUBLESHOOTING.md", "INSTRUCTORS.md", "CHANGELOG.md")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def write(root: Path, printed: Sequence[chapters.Printed], folder: Path) -> None:
    """Fill ``folder``, which is made.

    Args:
        root: the course's folder.
        printed: the chapters, in order.
        folder: becomes Sphinx's source.
    """
    shutil.copytree(root / "book", folder)
    glossary = folder / "glossary.md"
    words = terms.defined(glossary.read_text(encoding="utf-8")) if glossary.is_file() else []
    for chapter in printed:
        made = chapters.notebook(chapter)
        terms.link(made["cells"], words)
        _write_notebook(folder / "notebooks" / chapter.source.name, made)
    for solution in exercises.solution_files(root):
        _write_notebook(folder / "exercises" / solution.name, solved.notebook(solution))
    for name, text in reference.pages().items():
        _write(folder / "reference" / name, text)
    _write(folder / "published.md", pictures.published())
    _write(folder / "explorers.md", pictures.explorers())
    _pages(root, folder)
    _follow(root, folder)


def _pages(root: Path, folder: Path) -> None:
    """The repository's own pages; one that is not there is not listed either."""
    index = folder / "index.md"
    lines = index.read_text(encoding="utf-8").splitlines()
    for name in PAGES:
        if (root / name).is_file():
            _write(folder / name, (root / name).read_text(encoding="utf-8"))
        else:
            lines = [line for line in lines if line != Path(name).stem]
    _write(index, "\n".join(lines) + "\n")


def _write_notebook(file: Path, notebook: dict) -> None:
    for number, cell in enumerate(notebook["cells"]):
        cell.setdefault("id", f"c{number}")
    _write(file, json.dumps(notebook, indent=1, ensure_ascii=False))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _follow(root: Path, folder: Path) -> None:
    """What a page links to, and is no page, comes along as a file; a link to a folder becomes its text."""
    for page in sorted(folder.rglob("*.md")):
        text = page.read_text(encoding="utf-8")

        def lead(link: re.Match, page: Path = page) -> str:
            here = (page.parent / link[3]).resolve()
            there = root / here.relative_to(folder.resolve()) if here.is_relative_to(folder.resolve()) else root
            if here.exists() and here.is_file():
                return link[0]
            if there.is_file():
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(there, here)
            return f"`{link[3]}`" if there.is_dir() else link[0]

        page.write_text(_LINK.sub(lead, text), encoding="utf-8")
