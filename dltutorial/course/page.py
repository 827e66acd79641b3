"""One executed notebook as the body of a static page: mathematics as MathML, widgets left out, no script of ours.

In: a notebook with outputs. Out: HTML. nbconvert's "basic" template makes the cells; it has no head, so nothing is
asked of a content network.
"""

import html
import re
from collections.abc import Collection
from typing import Any

from dltutorial.course.execute import quick_imports

_WIDGET = "application/vnd.jupyter.widget-view+json"
_IMAGE = re.compile(r'<img[^>]*\bsrc="(?P<address>data:image/[^"]+)"[^>]*>')
_ALT = re.compile(r'\balt="([^"]*)"')
_LINK = re.compile(r'<a [^>]*href="(?P<file>[^":]*\.ipynb)(?P<part>#[^"]*)?"[^>]*>(?P<text>.*?)</a>', re.S)
_NUMBER = re.compile(r"^#+\s*")


def body(notebook: Any, pages: Collection[str] = ()) -> str:
    """The cells of ``notebook`` as HTML.

    Args:
        notebook: with its outputs.
        pages: file names of the notebooks that have a page. Links to these lead there; links to others become text.
    """
    with quick_imports():
        from nbconvert.exporters import HTMLExporter

    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.register_filter("markdown2html", markdown)
    made = exporter.from_notebook_node(_without_widgets(notebook))[0]

    def lead(link: re.Match) -> str:
        if link["file"] not in pages:
            return link["text"]
        return f'<a href="{link["file"].removesuffix(".ipynb")}.html{link["part"] or ""}">{link["text"]}</a>'

    return _LINK.sub(lead, made)


def markdown(source: str) -> str:
    """Markdown as HTML, with mathematics as MathML."""
    import mistune

    held: list[str] = []

    def hold(match: re.Match) -> str:
        display = match["display"] is not None
        held.append(mathml(match["display"] if display else match["inline"], display))
        return f"\x02{len(held) - 1}\x03"

    code_aside = re.split(r"(^```.*?^```|`[^`\n]+`)", source, flags=re.S | re.M)
    code_aside[::2] = [_MATH.sub(hold, text) for text in code_aside[::2]]
    text = mistune.create_markdown(escape=False, plugins=["table", "strikethrough", "footnotes"])("".join(code_aside))
    return re.sub("\x02(\\d+)\x03", lambda match: held[int(match[1])], text)


_MATH = re.compile(
    r"(?<!\\)\$\$(?P<display>.+?)\$\$|(?<![\\$])\$(?![\s$])(?P<inline>[^$\n]+?)(?<![\s\\])\$(?!\d)", re.S
)


def mathml(latex: str, display: bool) -> str:
    """MathML for a formula; the formula itself, as code, where it cannot be read."""
    from latex2mathml.converter import convert

    try:
        return convert(latex.strip(), display="block" if display else "inline")
    except Exception:
        return f"<code>{html.escape(latex)}</code>"


def title(notebook: Any) -> str:
    """The first heading, without its marks."""
    for cell in notebook.cells:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("#"):
                return _NUMBER.sub("", line).strip()
    return "Untitled"


def first_figure(notebook: Any) -> tuple[str, str] | None:
    """The first picture among the outputs, as the address and the description of an ``img``."""
    for cell in notebook.cells if notebook else ():
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                alt = output.metadata.get("image/png", {}).get("alt") or cell.metadata.get("alt") or ""
                return f"data:image/png;base64,{''.join(data['image/png'].split())}", alt
            if found := _IMAGE.search(data.get("text/html", "")):
                alt = _ALT.search(found[0])
                return found["address"], html.unescape(alt[1]) if alt else ""
    return None


def highlighting() -> str:
    """Styles for highlighted code, for light and dark pages."""
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}"


def _without_widgets(notebook: Any) -> Any:
    from copy import deepcopy

    notebook = deepcopy(notebook)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    return notebook
