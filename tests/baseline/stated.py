"""What the course states, asks and offers: claims of its chapters, answers that its exercises know, its commands."""

import ast
import json
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def claims(root: Path = ROOT) -> list[tuple[str, str]]:
    """``(chapter, sentence)`` of every claim in the notebooks; where a value is filled in, the sentence has ``{}``."""
    found = []
    for notebook in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        for cell in json.loads(notebook.read_text())["cells"]:
            if cell["cell_type"] == "code":
                lines = "".join(cell["source"]).splitlines()
                code = "\n".join("pass" if line.lstrip().startswith(("%", "!")) else line for line in lines)
                found += [(notebook.name[:2], text) for text in _claims_of(ast.parse(code))]
    return sorted(set(found))


def _claims_of(tree: ast.AST) -> Iterator[str]:
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name.endswith("claim") or name == "not_shown":
                said = node.args[0]
                yield from _texts(named.get(said.id, said) if isinstance(said, ast.Name) else said)


def _texts(said: ast.AST) -> Iterator[str]:
    if isinstance(said, ast.Constant) and isinstance(said.value, str):
        yield said.value
    elif isinstance(said, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in said.values)
    elif isinstance(said, ast.IfExp):
        yield from _texts(said.body)
        yield from _texts(said.orelse)


def answers(root: Path = ROOT) -> list[tuple[str, str, str]]:
    """``(exercise, "rejected", label)`` of every wrong answer, and one ``(exercise, "accepted", …)`` each."""
    rows = []
    for file in sorted((root / "tests" / "exercises" / "wrong").glob("*.py")):
        rows.append((file.stem, "accepted", "the solution"))
        rows += [(file.stem, "rejected", label) for label, *_ in runpy.run_path(str(file))["WRONG"]]
    return rows
