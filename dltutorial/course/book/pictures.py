"""Two pages that the book makes of the library's own data: the explorers as pictures, the published figures as tables.

In: example values, and the files in ``dltutorial/reference``. Out: Markdown.
"""

import html
from pathlib import Path

from dltutorial.record import plots

_REFERENCE = Path(plots.__file__).parents[1] / "reference"


def explorers() -> str:
    """Every explorer, drawn with example numbers; its words stand above its picture."""
    from dltutorial.course import explorers

    parts = ["# Explorers", "In the notebooks these pictures have sliders. Here each is drawn with example numbers."]
    for explorer in explorers.examples().values():
        parts += [f"## {explorer.title}", f"```{{raw}} html\n{explorer.picture().html}\n```"]
    return "\n\n".join(parts) + "\n"


def published() -> str:
    """Every file of published figures as a table, under what it says of its sources."""
    parts = ["# Published figures", "What others measured, as the chapters show it beside your own measurements."]
    for file in sorted(_REFERENCE.glob("*.csv")):
        rows = plots.reference(file.stem)
        parts += [f"## {file.stem.replace('_', ' ')}", _html(" ".join(plots.reference_source(file.stem)), rows)]
    return "\n\n".join(parts) + "\n"


def _html(about: str, rows: list[dict[str, str]]) -> str:
    """As HTML, in which no sign of a figure is taken for markup."""
    from dltutorial.record.table import Table

    names = [name for name in rows[0] if name]
    table = Table.of([name.replace("_", " ") for name in names], [[row[name] or "–" for name in names] for row in rows])
    return f"```{{raw}} html\n<p>{html.escape(about)}</p>\n<div class='wide'>{table._repr_html_()}</div>\n```"
