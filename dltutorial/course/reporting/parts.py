"""The pieces of HTML that the report is made of.

In: words, numbers, charts. Out: HTML; whatever comes in as plain text is escaped.
"""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial.course import show
from dltutorial.record import plots

_SIGNS = {
    **show.SIGNS,
    **{"passed": "✓", "wrong": "✗", "not attempted": "–", "finished": "✓", "interrupted": "–", "running": "…"},
}
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        topic: what it is about, in a word or two; its anchor is made of it.
        finding: what was found, a sentence.
        body: the HTML that shows it.
        tiles: figures for the top of the page, each with what it means.
        chapters: where the course tells of it, such as "08 to 10".
        empty: nothing was measured yet.
        aside: it is no finding for the summary.
    """

    topic: str
    finding: str
    body: str
    tiles: tuple[tuple[str, str], ...] = ()
    chapters: str = ""
    empty: bool = False
    aside: bool = False

    @property
    def numbers(self) -> list[str]:
        """Its chapters one by one: "02, 04 to 06" are 02, 04, 05, 06."""
        spans = (part.partition(" to ")[::2] for part in self.chapters.split(", ") if part)
        return [f"{n:02}" for first, last in spans for n in range(int(first), int(last or first) + 1)]

    @property
    def anchor(self) -> str:
        """Its name in links."""
        return "-".join(self.topic.lower().split())


def page(title: str, facts: Sequence[str], sections: Sequence[Section], footer: str) -> str:
    """A whole HTML page that loads nothing: its style and pictures are in it, and its policy forbids the rest."""
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{text(title)}</title><style>{css}</style></head><body>\n"
        '<header><p class="kicker">Deep learning at scale · a learner’s report</p>'
        f"<h1>{text(title)}</h1>{''.join(f'<p>{text(fact)}</p>' for fact in facts)}</header>\n"
        f'<div class="page">{_contents(sections)}<main>{_tiles(sections)}{_summary(sections)}\n'
        + "\n".join(_section(number, section) for number, section in enumerate(sections, 1))
        + f"\n</main></div><footer>{text(footer)}</footer></body></html>\n"
    )


def _contents(sections: Sequence[Section]) -> str:
    links = "".join(
        f'<li{" class=empty" if s.empty else ""}><a href="#{text(s.anchor)}">{text(s.topic)}</a></li>' for s in sections
    )
    return f'<nav aria-label="Contents"><ol>{links}</ol></nav>'


def _tiles(sections: Sequence[Section]) -> str:
    tiles = "".join(
        f'<li><a href="#{text(s.anchor)}"><b>{text(figure)}</b>{text(meaning)}</a></li>'
        for s in sections
        for figure, meaning in s.tiles
    )
    return f'<ul class="tiles">{tiles}</ul>' if tiles else ""


def _summary(sections: Sequence[Section]) -> str:
    lines = "".join(
        f'<li>{text(s.finding)}. <a href="#{text(s.anchor)}">{text(s.topic)}</a></li>'
        for s in sections
        if not (s.empty or s.aside)
    )
    n_empty = sum(s.empty for s in sections)
    wait = "waits" if n_empty == 1 else "wait"
    words = f"{n_empty} of {len(sections)} sections {wait} for measurements and {'says' if n_empty == 1 else 'say'}"
    words = text(f"{words} what to run. About ten minutes fill most of them:")
    invite = f'<p class="todo">{words} <code>dltutorial run</code></p>' if n_empty else ""
    title = "In short" if lines else "Begin here"
    return f'<section class="summary"><h2>{title}</h2>{f"<ul>{lines}</ul>" if lines else ""}{invite}</section>'


def _section(number: int, s: Section) -> str:
    where = f' <span class="chapters">chapter {text(s.chapters)}</span>' if s.chapters else ""
    return (
        f'<section id="{text(s.anchor)}"><p class="topic">{number} · {text(s.topic)}{where}</p>'
        f"<h2>{text(s.finding)}</h2>{s.body}</section>"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Cells are escaped unless they are ``Html``; a head that begins with "# " is a column of numbers."""
    rows = list(rows)
    if not rows:
        return ""
    kinds = [' class="number"' if name.startswith("# ") else "" for name in head]
    names = [name.removeprefix("# ") for name in head]
    heads = "".join(
        f'<th scope="col"{kind}>{text(name)}</th>' if name else f"<td{kind}></td>"
        for name, kind in zip(names, kinds, strict=True)
    )
    lines = (
        "".join(
            f'<td{kind} data-head="{text(name)}">{text(cell)}</td>'
            for cell, kind, name in zip(row, kinds, names, strict=True)
        )
        for row in rows
    )
    return (
        f'<div class="table"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table></div>"
    )


def folded(summary: str, body: str) -> str:
    """Something long, behind a line to press; nothing if there is nothing to fold."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>" if body else ""


def status(status: Any) -> Html:
    """A status word with its sign, in its colour."""
    word = str(status)
    return Html(f'<span class="{text(word.replace(" ", "-"))}">{_SIGNS.get(word, "✗")} {text(word)}</span>')


def todo(command: str, why: str) -> str:
    """What to run to get what is missing."""
    return f'<p class="todo">To get this, run <code>{text(command)}</code> ({text(why)}).</p>'


def note(words: str) -> str:
    """A remark in small print."""
    return f'<p class="note">{text(words)}</p>'


def source(name: str) -> str:
    """Where a file of published figures has them from: its own words, all but the names of columns."""
    return " ".join(plots.reference_source(name))


def text(words: Any) -> str:
    """Words, escaped unless they are ``Html``; "2 ×" stays in one line."""
    return words if isinstance(words, Html) else html.escape(str(words).replace(" ×", "\u00a0×"))


def value(value: Any) -> str:
    """A record's value in few characters."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return show.number(value) if isinstance(value, float) else str(value)
