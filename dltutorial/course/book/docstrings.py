"""The course's docstrings, made ready for Sphinx: they are written to be read in the source, which is plainer than
reStructuredText.

In: the lines of a docstring, in napoleon's Google style. Out: the same lines with tables, indented blocks and bars
marked up. Types stand in signatures here, so a colon never parts a type from its meaning.
"""

import re
from collections.abc import Sequence

_COLON = "\ue000"  # stands for a colon while napoleon reads; of Unicode's private use, so no docstring holds it
_LITERAL = re.compile(r"(``[^`]+``)")
_ROW = re.compile(r"^\|.*\|$")
_SECTION = re.compile(r"^(\w[\w ]*):$")
_SEVERAL = re.compile(r"^ +\w+(?:, \w+)+: ")
_WITHOUT_TYPES = ("Returns:", "Yields:")


def ready(lines: Sequence[str], what: str) -> list[str]:
    """The docstring of a ``what`` ("module", "property", …) for napoleon."""
    made = list(lines)
    if what == "module":
        made = _blocks_kept(made)
    made = _tables(made)
    made = [line if line.startswith("    ") and what == "module" else _bars_escaped(line) for line in made]
    return _colons_hidden(_attributes_together(made), what)


def restored(lines: Sequence[str]) -> list[str]:
    """What napoleon made of it, with its colons."""
    return [line.replace(_COLON, ":") for line in lines]


def _bars_escaped(line: str) -> str:
    """``|x|`` is a norm, not a substitution."""
    parts = _LITERAL.split(line)
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    return "".join(parts)


def _colons_hidden(lines: list[str], what: str) -> list[str]:
    """Napoleon would take what stands before the first colon for a type."""
    made = list(lines)
    if what in ("property", "attribute") and made:
        made[0] = made[0].replace(":", _COLON)
    for number, line in enumerate(made[:-1]):
        if line.strip() in _WITHOUT_TYPES:
            made[number + 1] = made[number + 1].replace(":", _COLON)
    return made


def _attributes_together(lines: list[str]) -> list[str]:
    """Attributes of one line ("low, high: its ends") stay one: what stands before a space would be a type."""
    if "Attributes:" not in lines:
        return lines
    begin = lines.index("Attributes:")
    named = (hit[0].replace(", ", ",") + line[hit.end() :] if (hit := _SEVERAL.match(line)) else line
             for line in lines[begin:])  # fmt: skip
    return [*lines[:begin], *named]


def _blocks_kept(lines: list[str]) -> list[str]:
    """An indented block in a module's text keeps its lines and spaces; that of a section ("Attributes:") is prose."""
    made: list[str] = []
    for number, line in enumerate(lines):
        starts = line.startswith("    ") and number > 0 and not lines[number - 1].strip()
        if starts and not _in_section(lines[:number]):
            made += [".. code-block:: text", ""]
        made.append(line)
        ends = line.startswith("    ") and number + 1 < len(lines) and lines[number + 1][:1].strip()
        if ends and not _in_section(lines[:number]):
            made.append("")
    return made


def _in_section(before: list[str]) -> bool:
    """Whether the last line that stands at the margin opens a section or a directive."""
    margin = next((line for line in reversed(before) if line[:1].strip()), "")
    return bool(_SECTION.match(margin)) or margin.startswith(".. ")


def _tables(lines: list[str]) -> list[str]:
    """Tables as Markdown has them become ``list-table`` directives."""
    made: list[str] = []
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        if _ROW.match(line):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if rows:
            made += _list_table(rows)
            rows = []
        made.append(line)
    return made[:-1] if not lines or lines[-1] else made


def _list_table(rows: list[list[str]]) -> list[str]:
    head, body = rows[0], [row for row in rows[1:] if not set("".join(row)) <= set("-: ")]
    made = ["", ".. list-table::", "   :header-rows: 1", ""]
    for row in [head, *body]:
        made += [f"   {'* -' if number == 0 else '  -'} {cell}" for number, cell in enumerate(row)]
    return [*made, ""]
