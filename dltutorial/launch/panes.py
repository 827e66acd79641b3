"""What the ranks of a ``%%ranks`` cell print and show, in a notebook: one pane for each rank, which unfolds.

In: bytes and values of each rank, as they come. Out: one HTML display for each rank, renewed a few times a second; the
last state stays in the notebook, and in a page made of it. Rank 0's pane is open, and that of a rank that failed.
Beside the HTML stand the same lines as text, ``[rank 1] …``.
"""

import html
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dltutorial.launch.output import Output

_RENEW_S = 0.15
_LONGEST = 1000  # lines of a rank that are shown; the last ones
_WIDEST = 2000  # characters of a line
_TEASER = 90  # characters of the line that a closed pane shows
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PRE = '<pre style="margin:.2em 0 .4em 1.2em;white-space:pre-wrap;overflow-wrap:anywhere">'


class Panes(Output):
    """Live output of one cell, by rank."""

    def __init__(self, world_size: int):
        super().__init__(world_size)
        self._lines: list[list[str]] = [[] for _ in range(world_size)]
        self._dropped, self._marks = [0] * world_size, [""] * world_size
        self._values: list[Mapping[str, str] | None] = [None] * world_size
        self._displays: list[Any] = []
        self._changed: set[int] = set()
        self._drawn_s = 0.0

    def show(self, rank: int, bundle: Mapping[str, str]) -> None:
        """Show the value of a cell's last expression, given as ``MIME type: text``."""
        self._values[rank] = bundle
        self._changed.add(rank)

    def mark(self, rank: int, word: str) -> None:
        """Say how a rank ended, and open its pane."""
        self._marks[rank] = word
        self._changed.add(rank)

    def refresh(self) -> float:
        """Show what has come, if the last time is long enough ago; returns after how many seconds to call again."""
        if not self._changed:
            return float("inf")
        wait_s = self._drawn_s + _RENEW_S - time.monotonic()
        if wait_s > 0:
            return wait_s
        self._draw()
        return float("inf")

    def close(self) -> None:
        """Show all that has come."""
        super().close()
        if self._changed:
            self._draw()

    def _take(self, rank: int, texts: Sequence[str]) -> None:
        lines = self._lines[rank]
        lines += [_ESCAPES.sub("", text)[:_WIDEST] for text in texts]
        if (surplus := len(lines) - _LONGEST) > 0:
            del lines[:surplus]
            self._dropped[rank] += surplus
        self._changed.add(rank)

    def _draw(self) -> None:
        from IPython.display import DisplayHandle

        if not self._displays:  # all at once, so that they stand in the order of the ranks
            self._displays = [DisplayHandle() for _ in self._lines]
            for rank, display in enumerate(self._displays):
                display.display(self._bundle(rank), raw=True)
        else:
            for rank in sorted(self._changed):
                self._displays[rank].update(self._bundle(rank), raw=True)
        self._changed.clear()
        self._drawn_s = time.monotonic()

    def _bundle(self, rank: int) -> dict[str, str]:
        """One pane; a rank that has said nothing has an empty one."""
        value = self._values[rank] or {}
        lines = [*self._lines[rank], *value.get("text/plain", "").splitlines()]
        if not lines and not self._marks[rank]:
            return {"text/html": "", "text/plain": ""}
        mark = [f"✗ {self._marks[rank]}"] if self._marks[rank] else []
        plain = "\n".join(f"[rank {rank}] {line}" for line in [*self._left_out(rank), *lines, *mark])
        body = "\n".join([*self._left_out(rank), *self._lines[rank]])
        parts = [f"{_PRE}{html.escape(body)}</pre>"] if body else []
        if "text/html" in value:
            parts.append(f'<div style="margin-left:1.2em">{value["text/html"]}</div>')
        elif value:
            parts.append(f"{_PRE}{html.escape(value['text/plain'])}</pre>")
        opened = " open" if rank == 0 or self._marks[rank] else ""
        page = f'<details class="dlt-rank"{opened}>{self._summary(rank, lines)}{"".join(parts)}</details>'
        return {"text/html": page, "text/plain": plain}

    def _summary(self, rank: int, lines: Sequence[str]) -> str:
        mark = f' <b style="color:#D55E00">✗ {self._marks[rank]}</b>' if self._marks[rank] else ""
        teaser = html.escape(lines[-1][:_TEASER]) if rank and lines and not mark else ""
        n_more = self._dropped[rank] + len(lines) - 1
        more = f"{n_more} more line{'s' if n_more > 1 else ''}, then: " if teaser and n_more else ""
        return f'<summary><b>rank {rank}</b>{mark} <span style="opacity:.7">{more}{teaser}</span></summary>'

    def _left_out(self, rank: int) -> list[str]:
        return [f"… {self._dropped[rank]:,} earlier lines are left out"] if self._dropped[rank] else []
