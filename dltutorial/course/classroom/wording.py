"""The course's own words for what learners' records only name: titles of chapters, questions of predictions.

In: the notebooks of whoever looks at the class. Out: dictionaries; empty where there are no notebooks. So a page
about a class need not take these words from its records.
"""

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dltutorial.course import notebooks
from dltutorial.errors import CourseError


@dataclass(frozen=True)
class Wording:
    """``titles``: chapter → its title. ``questions``: (chapter, name) → the question that was asked."""

    titles: Mapping[str, str] = field(default_factory=dict)
    questions: Mapping[tuple[str, str], str] = field(default_factory=dict)


def of_course() -> Wording:
    """The words of the notebooks here; none if there are no notebooks."""
    try:
        folder = notebooks.folder()
        titles = {card.number: card.title for card in map(notebooks.card, notebooks.chapters(folder))}
        return Wording(titles, dict(_questions(folder)))
    except CourseError:
        return Wording()


def _questions(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """What each ``predict("name", "question", …)`` of a notebook asks."""
    for file in notebooks.chapters(folder):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        number = str(notebook["metadata"].get("dltutorial", {}).get("chapter", file.stem[:2]))
        for cell in notebook["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] != "code" or "predict(" not in source:
                continue
            try:
                tree = ast.parse(source)
            except SyntaxError:  # a line of IPython's own
                continue
            known = {
                t.id: n.value for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if hasattr(t, "id")
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "predict" and len(node.args) > 1:
                    name, question = (_text(known.get(getattr(arg, "id", ""), arg)) for arg in node.args[:2])
                    if name and question:
                        yield (number, name), question


def _text(node: ast.expr) -> str:
    """The text of a string, "…" in place of what only a run knows; empty for what is no string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    value = getattr(node, "value", None)
    return value if isinstance(value, str) else ""
