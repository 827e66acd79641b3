"""A small table that reads well in a notebook and in a terminal.

In: a header and rows of anything. Out: an object that shows itself as HTML or as aligned text. Columns whose cells
all begin with a digit or a sign are aligned to the right.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) != "\n"}


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under a header; every cell is text, in which control characters are shown, not obeyed."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
        """Make a table of anything; None reads "not available".

        Raises:
            ValueError: a row has another length than the header.
        """
        cells = tuple(tuple("not available" if x is None else str(x).translate(_SHOWN) for x in row) for row in rows)
        if any(len(row) != len(header) for row in cells):
            raise ValueError(f"every row needs {len(header)} cells, one for each of {', '.join(header)}")
        return cls(tuple(header), cells)

    def _numeric(self) -> list[bool]:
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [bool(column) and all(cell[:1] in "0123456789-−+" for cell in column) for column in columns]

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        sides = [f">{width}" if right else f"<{width}" for width, right in zip(widths, self._numeric(), strict=True)]
        head, *rows = ("  ".join(f"{x:{side}}" for x, side in zip(line, sides, strict=True)).rstrip() for line in lines)
        return "\n".join([head, "─" * (sum(widths) + 2 * len(widths) - 2), *rows])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        sides = ["right" if right else "left" for right in self._numeric()]

        def line(tag: str, cells: Sequence[str]) -> str:
            inside = "".join(
                f'<{tag} style="text-align:{side};padding:.2em .9em">{html.escape(cell)}</{tag}>'
                for cell, side in zip(cells, sides, strict=True)
            )
            return f"<tr>{inside}</tr>"

        body = "".join(line("td", row) for row in self.rows)
        return f'<table class="dlt-table"><thead>{line("th", self.header)}</thead><tbody>{body}</tbody></table>'
