"""A small table for notebooks and terminals.

Input: a header, and rows of any objects.
Output: a table that shows itself as HTML or as aligned text. A column is aligned to the right if all its cells begin
with a digit or a sign.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under a header. Every cell is text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
        """Make a table of any objects. None is shown as "not available".

        Args:
            header: The name of each column.
            rows: The rows, with a cell for each column.
        """
        return cls(tuple(header), tuple(tuple(_cell(value) for value in row) for row in rows))

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
        is_numeric = self._numeric_columns()
        head = _html_row("th", self.header, is_numeric)
        body = "".join(_html_row("td", row, is_numeric) for row in self.rows)
        return f'<table class="dlt-table"><thead>{head}</thead><tbody>{body}</tbody></table>'

    def _numeric_columns(self) -> list[bool]:
        """Whether each column looks numeric. An empty column does not."""
        if not self.rows:
            return [False] * len(self.header)
        columns = zip(*self.rows, strict=True)
        return [all(cell[:1] in "0123456789-−+" for cell in column) for column in columns]


def _cell(value: object) -> str:
    """Return the text of a cell."""
    return "not available" if value is None else str(value)


def _html_row(tag: str, cells: Sequence[str], align_right: Sequence[bool]) -> str:
    """Return a row of HTML."""
    row = ""
    for cell, is_right in zip(cells, align_right, strict=True):
        side = "right" if is_right else "left"
        row += f'<{tag} style="text-align:{side};padding:.2em .9em">{html.escape(cell)}</{tag}>'
    return f"<tr>{row}</tr>"
