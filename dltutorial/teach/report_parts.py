"""The pieces of HTML that ``dltutorial report`` is made of.

In: words, numbers, figures. Out: HTML; whatever comes in as plain text is escaped.
"""

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial.observe import plots
from dltutorial.teach import show

_SIGNS = {
    **show.SIGNS,
    **{"passed": "✓", "wrong": "✗", "not attempted": "–", "finished": "✓", "interrupted": "–", "running": "…"},
}


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A part of the page: what it is about, what was found, the HTML that shows it, a tile for the top if any."""

    topic: str
    finding: str
    body: str
    tile: tuple[str, str] | None = None


def page(title: str, facts: Sequence[str], sections: Sequence[Section], footer: str) -> str:
    """A whole HTML page that loads nothing: its style and pictures are in it, and its policy forbids the rest."""
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    tiles = "".join(f"<li><b>{text(s.tile[0])}</b>{text(s.tile[1])}</li>" for s in sections if s.tile)
    bodies = "\n".join(
        f'<section><p class="topic">{text(s.topic)}</p><h2>{text(s.finding)}</h2>{s.body}</section>' for s in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        f"<title>{text(title)}</title><style>{css}</style></head><body>\n"
        f"<header><h1>{text(title)}</h1>{''.join(f'<p>{text(fact)}</p>' for fact in facts)}</header>\n<main>"
        + (f'<ul class="tiles">{tiles}</ul>' if tiles else "")
        + f"\n{bodies}\n</main><footer>{text(footer)}</footer></body></html>\n"
    )


def drawn(draw: Callable, *args: Any) -> str:
    """The figure that ``draw(*args, to=…)`` hands on, as a picture inside the page."""
    pictures: list[str] = []
    draw(*args, to=lambda fig, alt: pictures.append(plots.image(fig, alt)))
    return "".join(pictures)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are escaped unless they are ``Html``; a head that begins with "# " is a column of numbers."""
    rows = list(rows)
    if not rows:
        return ""
    kinds = [' class="number"' if name.startswith("# ") else "" for name in head]
    heads = "".join(
        f'<th scope="col"{kind}>{text(name.removeprefix("# "))}</th>' for name, kind in zip(head, kinds, strict=True)
    )
    lines = ("".join(f"<td{kind}>{text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) for row in rows)
    return (
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"
    )


def status(status: Any) -> Html:
    """A status word with its sign, in its colour."""
    word = str(status)
    return Html(f'<span class="{text(word.replace(" ", "-"))}">{_SIGNS.get(word, "✗")} {text(word)}</span>')


def todo(command: str, why: str) -> str:
    """What to run to get what is missing."""
    return f'<p class="todo">To get this, run <code>{text(command)}</code> ({text(why)}).</p>'


def text(words: Any) -> str:
    """Words, escaped unless they are ``Html``."""
    return words if isinstance(words, Html) else html.escape(str(words))


def value(value: Any) -> str:
    """A record's value in few characters."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return show.number(value) if isinstance(value, float) else str(value)
