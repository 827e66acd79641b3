"""The library stays small, and its names say what things are: budgets of rooms, one name for one thing."""

import ast
import collections
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dltutorial"
# Lines of all Python files, blank lines and docstrings included: what there is, and no more. 18,500 for chapters 00 to
# 15; 22,000 at most with Parts IV and V.
BUDGET = {
    "": 1731,
    "record": 605,
    "profile": 2448,
    "data": 2803,
    "models": 137,
    "optim": 323,
    "launch": 1511,
    "comm": 711,
    "parallel": 1251,
    "train": 3798,
    "scaling": 539,
    "convergence": 952,
    "course": 3579,
    "science": 1612,
}
# Words that only their author understands as the name of a file.
PRIVATE = {"meeting", "lives", "panes", "standing", "endings", "rungs", "tape", "seats", "resident", "session"}
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in FILES}


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0] if file.parent != PACKAGE else ""


def n_lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def notebooks() -> list[Path]:
    return sorted(path for folder in ("notebooks", "solutions") for path in (ROOT / folder).glob("*.ipynb"))


def code_of(notebook: Path) -> ast.Module:
    """All code of a notebook, without its magics."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    lines = "\n".join(source for source in sources if not source.startswith("%%")).splitlines()
    return ast.parse("\n".join(re.sub(r"^(\s*)(\w+ = )?[%!].*", r"\1pass", line) for line in lines))


def imported(tree: ast.AST) -> set[str]:
    """Names of the course's modules that some code imports, wherever it does."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dltutorial"):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(MODULES)


@pytest.mark.parametrize("room", BUDGET)
def test_a_room_keeps_to_its_budget(room):
    assert sum(n_lines(file) for file in FILES if room_of(file) == room) <= BUDGET[room]


def test_the_rooms_are_these():
    assert {room_of(file) for file in FILES} == set(BUDGET)
    assert len(BUDGET) - 1 <= 13  # beside the files at the top


def test_no_two_public_classes_have_one_name():
    names = collections.Counter(
        node.name
        for file in FILES
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in names.items() if times > 1] == []


def test_no_splinter_serves_a_single_module():
    """A file of less than 40 lines with one importer belongs into that importer."""
    users = collections.Counter()
    for file in FILES:
        users.update(imported(ast.parse(file.read_text())))
    for notebook in notebooks():
        users.update(imported(code_of(notebook)))
    small = [name for name, file in MODULES.items() if n_lines(file) < 40 and not file.name.startswith("__")]
    assert [name for name in small if users[name] == 1] == []


def test_no_file_has_a_name_that_only_its_author_understands():
    assert [str(file) for file in FILES if file.stem in PRIVATE] == []


def test_no_notebook_renames_a_module_of_the_course():
    aliased = [
        (path.name, alias.name)
        for path in notebooks()
        for node in ast.walk(code_of(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dltutorial")
        for alias in node.names
        if alias.asname and f"{node.module}.{alias.name}" in MODULES
    ]
    assert aliased == []
