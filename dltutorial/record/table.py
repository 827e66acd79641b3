"""A small table for notebooks and terminals.

Input: a header, and rows of any objects.
Output: a table that shows itself as HTML or as aligned text. A column is aligned to the right if all its cells begin
with a digit or a sign.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_CONTROL_CODES = (*range(32), *range(127, 160))
_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROL_CODES if chr(code) != "\n"}


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under a header. Every cell is text, in which control characters are shown as escapes."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
        """Make a table of any objects. None is shown as "not available".

        Args:
            header: The name of each column.
            rows: The rows, with a cell for each column.

        Returns:
            The table.

        Raises:
            ValueError: A row and the header have different lengths.
        """
        cells = tuple(tuple(_cell(value) for value in row) for row in rows)
        if any(len(row) != len(header) for row in cells):
            raise ValueError(f"every row needs {len(header)} cells, one for each of {', '.join(header)}")
        return cls(tuple(header), cells)

    def __str__(self) -> str:
        is_numeric = self._numeric_columns()
        columns = zip(self.header, *self.rows, strict=True)
        padded_columns = []
        for column, align_right in zip(columns, is_numeric, strict=True):
            width = max(len(cell) for cell in column)
            padded = [cell.rjust(width) if align_right else cell.ljust(width) for cell in column]
            padded_columns.append(padded)
        lines = ["  ".join(row) for row in zip(*padded_columns, strict=True)]
        rule = "─" * len(lines[0])
        head, *rows = [line.rstrip() for line in lines]
        return "\n".join([head, rule, *rows])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        sides = []
        for is_numeric in self._numeric_columns():
            sides.append("right" if is_numeric else "left")
        head = _html_row("th", self.header, sides)
        body = "".join(_html_row("td", row, sides) for row in self.rows)
        return f'<table class="dlt-table"><thead>{head}</thead><tbody>{body}</tbody></table>'

    def _numeric_columns(self) -> list[bool]:
        """Whether each column looks numeric. An empty column does not."""
        if not self.rows:
            return [False] * len(self.header)
        columns = zip(*self.rows, strict=True)
        return [all(cell[:1] in "0123456789-−+" for cell in column) for column in columns]


def _cell(value: object) -> str:
    """The text of a cell."""
    if value is None:
        return "not available"
    return str(value).translate(_ESCAPES)


def _html_row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    """A row of HTML, with each cell aligned to its side."""
    parts = []
    for cell, side in zip(cells, sides, strict=True):
        parts.append(f'<{tag} style="text-align:{side};padding:.2em .9em">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(parts)}</tr>"
