"""The pieces of HTML that the page of a class is made of.

In: words and numbers, from learners too. Out: HTML; whatever is not :class:`Html` already is escaped.
"""

import html
from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is HTML already, made here and not by a learner."""

    __slots__ = ()


def text(words: str) -> str:
    """Words, escaped unless they are HTML made here."""
    return words if isinstance(words, Html) else html.escape(str(words))


def section(topic: str, finding: str, body: str, kind: str = "", name: str = "") -> str:
    """A part of the page: its topic, what was found, the HTML that shows it; ``name`` is what a link leads to."""
    anchor = f' id="{name}"' if name else ""
    return f'<section class="{kind}"{anchor}><p class="topic">{topic}</p><h2>{text(finding)}</h2>{body}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are escaped unless they are HTML; a head that begins with "# " is a column of numbers."""
    kinds = [' class="number"' if name.startswith("# ") else "" for name in head]
    heads = "".join(
        f'<th scope="col"{kind}>{text(name.removeprefix("# "))}</th>' for name, kind in zip(head, kinds, strict=True)
    )
    lines = ("".join(f"<td{kind}>{text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) for row in rows)
    return (
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"
    )


def bar(count: int, of: int) -> str:
    """A share as a bar; the number stands beside it as text."""
    return f'<div class="bar" aria-hidden="true"><i style="width:{100 * count / max(1, of):.1f}%"></i></div>'


def stacked(passed: int, trying: int, of: int) -> str:
    """Two shares as one bar; the numbers stand beside it as text."""
    parts = "".join(
        f'<i class="{kind}" style="width:{100 * n / max(1, of):.1f}%"></i>'
        for kind, n in (("passed", passed), ("trying", trying))
    )
    return f'<div class="bar stacked" aria-hidden="true">{parts}</div>'


def plural(n: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def figure(title: str, note: str, picture: str, number: str = "") -> str:
    """A picture under its title; ``picture`` is HTML, the rest is not."""
    lead = f"<b>{text(number)}</b> " if number else ""
    caption = f'{lead}{text(title)} <span class="note">{text(note)}</span>'
    return f"<figure><figcaption>{caption}</figcaption>{picture}</figure>"
