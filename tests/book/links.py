"""Read a built site: its links and anchors lead somewhere, its pictures have descriptions, no page asks another host.

The input is a folder of HTML pages. The output is one line for each problem. Addresses outside are not asked for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
_NOT_FETCHED = {"canonical", "search", "index", "prev", "next", "author", "copyright", "up", "contents"}
_FROM_STYLE = re.compile(r"""(?:url\(|@import\s+)['"]?((?:https?:)?//[^'")\s]+)""")


@dataclass
class _Page(HTMLParser):
    """What one page offers (ids) and what it asks for."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    without_alt: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if given.get(_FETCHED.get(tag, "")) and not _NOT_FETCHED & set(given.get("rel", "").split()):
            self.fetched.append(given[_FETCHED[tag]])
        if tag == "img" and not given.get("alt", "").strip() and given.get("aria-hidden") != "true":
            self.without_alt.append(given.get("src", "")[:60])
        if tag == "svg" and given.get("role") == "img" and not given.get("aria-label", "").strip():
            self.without_alt.append("an svg")
        if tag == "iframe" and not given.get("title", "").strip():
            self.without_alt.append("an iframe")
        self.fetched += [] if "style" not in given else _FROM_STYLE.findall(given["style"])
        self.frames += [given["srcdoc"]] if given.get("srcdoc") else []


def problems(site: Path) -> list[str]:
    """One line for each dead link or anchor, malformed address, picture without words, request to another host."""
    files = [file for file in sorted(site.rglob("*.html")) if "_static" not in file.relative_to(site).parts]
    pages = {file: _read(file) for file in files}
    found = [line for file, page in pages.items() for line in _of_page(file, page, pages, site)]
    for style in sorted(site.rglob("*.css")):
        found += [
            f"{style.relative_to(site)}: asks {address}" for address in _FROM_STYLE.findall(style.read_text("utf-8"))
        ]
    return found


def _read(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text(encoding="utf-8"))
    page.close()
    return page


def _of_page(file: Path, page: _Page, pages: dict[Path, _Page], site: Path) -> Iterator[str]:
    name = file.relative_to(site)
    for link in dict.fromkeys(page.links):
        reason = _dead(link, file, pages)
        if reason:
            yield f"{name}: {link!r}: {reason}"
    for address in page.fetched:
        if _is_foreign(address):
            yield f"{name}: asks {address}"
        elif urlsplit(address).scheme == "" and not _target(address, file).exists():
            yield f"{name}: {address!r}: no such file"
    yield from (f"{name}: no description of {picture}" for picture in page.without_alt)
    for frame in page.frames:
        inner = _Page()
        inner.feed(frame)
        yield from (f"{name}: a frame asks {address}" for address in inner.fetched if _is_foreign(address))


def _dead(link: str, file: Path, pages: dict[Path, _Page]) -> str:
    """Why a link leads nowhere; empty if it leads somewhere, or outside by a well-formed address."""
    try:
        parts = urlsplit(link)
    except ValueError as error:
        return str(error)
    if parts.scheme in ("http", "https"):
        return "" if re.fullmatch(r"[\w.-]+\.\w+(:\d+)?", parts.netloc) and " " not in link else "not an address"
    if parts.scheme or link.startswith("//"):
        return "" if parts.scheme in ("mailto", "data") else "not an address"
    target = _target(link, file)
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return "no such anchor"
    return ""


def _target(link: str, file: Path) -> Path:
    path = unquote(urlsplit(link).path)
    target = (file.parent / path).resolve() if path else file
    return target / "index.html" if target.is_dir() else target


def _is_foreign(address: str) -> bool:
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https", "ws", "wss")
