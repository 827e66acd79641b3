"""Read a built site: its links and anchors lead somewhere, its pictures have descriptions, no page asks another host.

The input is a folder of HTML pages. The output is one line for each problem. The reader asks no other host.
"""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """One page: its anchors, its links, what a browser fetches for it, and its pictures without a description."""

    def __init__(self, file: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.without_description: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag has."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if tag == "a":
            self.links.append(values.get("href", ""))
        if tag in ("img", "script", "iframe"):
            self.fetched.append(values.get("src", ""))
        if tag == "link" and values.get("rel") == "stylesheet":
            self.fetched.append(values.get("href", ""))
        if tag == "img" and not values.get("alt") and values.get("aria-hidden") != "true":
            self.without_description.append(values.get("src", "")[:60])


def problems(site: Path) -> list[str]:
    """Return one line for each dead link or anchor, picture without a description, and request to another host."""
    files = [file for file in sorted(site.rglob("*.html")) if "_static" not in file.relative_to(site).parts]
    pages = {file: Page(file) for file in files}
    lines = []
    for file, page in pages.items():
        name = file.relative_to(site)
        lines += [f"{name}: {link} leads nowhere" for link in page.links if is_dead(link, file, pages)]
        lines += [f"{name}: asks {address}" for address in page.fetched if urlsplit(address).netloc]
        lines += [f"{name}: no description of {picture}" for picture in page.without_description]
    return lines


def is_dead(link: str, file: Path, pages: dict[Path, Page]) -> bool:
    """Return whether a link inside the site leads to no file, or to no anchor of its page."""
    parts = urlsplit(link)
    if parts.scheme:
        return False
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target = target / "index.html"
    if not target.is_file():
        return True
    anchor = unquote(parts.fragment)
    return anchor != "" and target in pages and anchor not in pages[target].anchors
