"""The pages of a run: ``index.html`` and one page for each executed notebook. No request to any network, and no script
but the one that draws timelines, inside their frames.

In: a run's folder with ``run.json``, ``records.jsonl`` and executed notebooks. Out: HTML files beside them. Widgets
need a kernel, so they are left out: a static line or picture stands beside each in the notebooks.
"""

import contextlib
import datetime
import html
import json
from importlib import resources
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import page, show
from dltutorial.course.execute import quick_imports
from dltutorial.errors import CourseError
from dltutorial.profile import timeline
from dltutorial.record import records

# What an output brings along (a script, an address) is forbidden by the page itself; frames inherit that.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STATUS = {"finished": "shown", "failed": "failed", "not run": "not shown here"}


def write(folder: Path) -> Path:
    """Write the pages of the run in ``folder``; returns the path of its index.

    Raises:
        CourseError: it is no run's folder, or cannot be written.
    """
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CourseError(f"{folder} is not a run of the course: {error}; name a folder under runs/") from error
    found = _records(folder)
    pages = {row["notebook"] for row in about["chapters"] if (folder / row["notebook"]).is_file()}
    cards = []
    for row in about["chapters"]:
        notebook = _read(folder / row["notebook"])
        name = Path(row["notebook"]).with_suffix(".html").name
        title = page.title(notebook) if notebook else Path(row["notebook"]).stem
        if notebook:
            paths.write_text(folder / name, _document(title, page.body(notebook, pages), back=True))
        claims = [r for r in found if r["kind"] == "claim" and r["chapter"] == row["chapter"]]
        cards.append(_card(row, title, name if notebook else None, claims, page.first_figure(notebook)))
    text = _document("Deep learning at scale: a run of the course", _index(about, found, cards))
    paths.write_text(folder / "index.html", text)
    return folder / "index.html"


def _records(folder: Path) -> list[dict]:
    with contextlib.suppress(CourseError):
        return list(records.read(folder / "records.jsonl"))
    return []


def _read(path: Path) -> Any:
    """The executed notebook; None where the chapter did not get that far."""
    if not path.is_file():
        return None
    with quick_imports():
        import nbformat
    return nbformat.read(path, 4)


def _index(about: dict, found: list[dict], cards: list[str]) -> str:
    """The head with machine, preset and date; the claims in numbers; a card for each chapter."""
    when = found[0]["time"][:10] if found else datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    facts = {"machine": about["machine"], "preset": about["preset"], "date": when, "versions": versions}
    facts["time"] = f"{sum(row.get('seconds', 0) for row in about['chapters']):.0f} s in notebooks"
    lines = "".join(f"<div><dt>{key}</dt><dd>{html.escape(str(value))}</dd></div>" for key, value in facts.items())
    totals = {
        status: sum(row["claims"].get(status, 0) for row in about["chapters"])
        for status in ("shown", "not shown here", "otherwise", "failed")
    }
    tiles = "".join(
        f'<li class="{_css(status)}"><b>{show.SIGNS[status]} {n}</b> claim{"" if n == 1 else "s"} {status}</li>'
        for status, n in totals.items()
    )
    return (
        f"<header><h1>Deep learning at scale</h1><p>A run of the course: what these notebooks claim, and what this "
        f'machine showed.</p><dl class="facts">{lines}</dl><ul class="totals">{tiles}</ul></header>'
        f"<main>{''.join(cards)}</main>"
    )


def _card(row: dict, title: str, link: str | None, claims: list[dict], figure: tuple[str, str] | None) -> str:
    """One chapter: title, seconds, status, first figure, claims that unfold."""
    heading = html.escape(title)
    if link:
        heading = f'<a href="{link}">{heading}</a>'
    parts = [f"{row['seconds']:.1f} s"] if "seconds" in row else []
    parts += [f"{row['peak_bytes'] / 1e9:.2f} GB at most"] if row.get("peak_bytes") else []
    sign = show.SIGNS[_STATUS[row["status"]]]
    parts.append(f'<b class="{_css(_STATUS[row["status"]])}">{sign} {row["status"]}</b>')
    error = ""
    if row.get("error"):
        where = f"Cell {row['cell']}: " if row["cell"] else ""
        error = f'<p class="error">{where}{html.escape(row["error"])}</p>'
    picture = ""
    if figure:
        alt = html.escape(figure[1] or "first figure of the chapter")
        image = f'<img src="{figure[0]}" alt="{alt}">'
        picture = f'<a class="picture" href="{link}">{image}</a>'
    items = "".join(_claim(claim) for claim in claims)
    counts = ", ".join(f"{n} {status}" for status, n in row["claims"].items())
    unfold = (
        f"<details open><summary>Claims: {counts}</summary><ul class=claims>{items}</ul></details>" if items else ""
    )
    return (
        f'<section class="chapter"><div><p class="number">Chapter {html.escape(row["chapter"])}</p><h2>{heading}</h2>'
        f"<p>{' · '.join(parts)}</p>{error}{unfold}</div>{picture}</section>"
    )


def _claim(claim: dict) -> str:
    status = claim["status"]
    more = claim.get("evidence") or ""
    if status == "not shown here":
        more = f"This needs {claim.get('needs')}. {more}"
    return (
        f'<li><details><summary><b class="{_css(status)}" aria-label="{status}">{show.SIGNS[status]}</b> '
        f"{html.escape(claim['what'])}</summary><p>{html.escape(more)}</p></details></li>"
    )


def _css(status: str) -> str:
    return status.split()[0]


def _document(title: str, body: str, back: bool = False) -> str:
    """A whole page with its style inside. A notebook's page lets timelines draw: their script is named by its hash."""
    style = resources.files("dltutorial.course").joinpath("site.css").read_text(encoding="utf-8")
    policy = _POLICY
    if back:
        policy += f"; script-src {timeline.script_hash()}"
        body = f'<nav><a href="index.html">← all chapters</a></nav><article>{body}</article>'
        style += page.highlighting()
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body>{body}</body></html>\n"
    )
