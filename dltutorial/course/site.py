"""The pages of a run: ``index.html`` and one page for each executed notebook. No request to any network, and no script
but the one that draws timelines, inside their frames.

In: a run's folder with ``run.json``, ``records.jsonl`` and executed notebooks. Out: HTML files beside them, by the
template ``site.html`` and nbconvert's "basic" one, which has no head, so nothing is asked of a content network.
Mathematics becomes MathML. Widgets need a kernel, so they are left out: a static picture stands beside each.
"""

import datetime
import html
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.course import notebooks, runner, show
from dltutorial.course.execute import quick_imports
from dltutorial.errors import CourseError
from dltutorial.profile import timeline

# What an output brings along (a script, an address) is forbidden by the page itself; frames inherit that.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_IMAGE = re.compile(r'<img[^>]*\bsrc="(?P<address>data:image/[^"]+)"[^>]*>')
_ALT = re.compile(r'\balt="([^"]*)"')
_LINK = re.compile(r'<a [^>]*href="(?P<file>[^":]*\.ipynb)(?P<part>#[^"]*)?"[^>]*>(?P<text>.*?)</a>', re.S)
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.S | re.M)
_MATH = re.compile(
    r"(?<!\\)\$\$(?P<display>.+?)\$\$|(?<![\\$])\$(?![\s$])(?P<inline>[^$\n]+?)(?<![\s\\])\$(?!\d)", re.S
)


def write(folder: Path) -> Path:
    """Write the pages of the run in ``folder``; returns the path of its index.

    Raises:
        CourseError: it is no run's folder, or cannot be written.
    """
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CourseError(f"{folder} is not a run of the course: {error}; name a folder under runs/") from error
    claims, rows = runner.read_claims(folder), about["chapters"]
    pages = {row["notebook"] for row in rows if (folder / row["notebook"]).is_file()}
    for row in rows:
        row |= {"title": Path(row["notebook"]).stem, "told": claims.get(row["chapter"], [])}
        if row["notebook"] in pages:
            notebook = _read(folder / row["notebook"])
            row["title"], row["figure"] = notebooks.title(notebook), _first_figure(notebook)
            row["page"] = Path(row["notebook"]).with_suffix(".html").name
            paths.write_text(folder / row["page"], _fill(title=row["title"], body=body(notebook, pages)))
    dates = [claim["time"][:10] for told in claims.values() for claim in told]
    facts = {
        "machine": about["machine"],
        "preset": about["preset"],
        "date": min(dates, default=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")),
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version),
        "time": f"{sum(row.get('seconds', 0) for row in rows):.0f} s in notebooks",
    }
    totals = {status: sum(row["claims"].get(status, 0) for row in rows) for status in runner.STATUSES}
    text = _fill(title="Deep learning at scale: a run of the course", facts=facts, totals=totals, chapters=rows)
    paths.write_text(folder / "index.html", text)
    return folder / "index.html"


def body(notebook: Any, pages: Collection[str] = ()) -> str:
    """The cells of ``notebook`` as HTML.

    Args:
        notebook: with its outputs.
        pages: file names of the notebooks that have a page. Links to these lead there; links to others become text.
    """
    with quick_imports():
        from nbconvert.exporters import HTMLExporter

    def lead(link: re.Match) -> str:
        if link["file"] not in pages:
            return link["text"]
        return f'<a href="{link["file"].removesuffix(".ipynb")}.html{link["part"] or ""}">{link["text"]}</a>'

    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    exporter.register_filter("markdown2html", markdown)
    return _LINK.sub(lead, exporter.from_notebook_node(notebook)[0])


def markdown(source: str) -> str:
    """Markdown as HTML, with mathematics as MathML."""
    import mistune

    held: list[str] = []

    def hold(match: re.Match) -> str:
        held.append(mathml(match["display"] or match["inline"], display=match["display"] is not None))
        return f"\x02{len(held) - 1}\x03"

    code_aside = _CODE.split(source)
    code_aside[::2] = [_MATH.sub(hold, text) for text in code_aside[::2]]
    render = mistune.create_markdown(escape=False, plugins=["table", "strikethrough", "footnotes"])
    return re.sub("\x02(\\d+)\x03", lambda match: held[int(match[1])], str(render("".join(code_aside))))


def mathml(latex: str, display: bool) -> str:
    """MathML for a formula; the formula itself, as code, where it cannot be read."""
    from latex2mathml.converter import convert

    try:
        return convert(latex.strip(), display="block" if display else "inline")
    except Exception:
        return f"<code>{html.escape(latex)}</code>"


def _read(path: Path) -> Any:
    """An executed notebook without its widgets."""
    with quick_imports():
        import nbformat
    notebook = nbformat.read(path, 4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    return notebook


def _first_figure(notebook: Any) -> tuple[str, str] | None:
    """The first of the course's figures among the outputs, as the address and the description of an ``img``."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    for output in outputs:
        if found := _IMAGE.search(output.get("data", {}).get("text/html", "")):
            alt = _ALT.search(found[0])
            return found["address"], html.unescape(alt[1]) if alt else ""
    return None


def _fill(body: str = "", **words: Any) -> str:
    """A whole page with its style inside. A notebook's page lets timelines draw: their script is named by its hash."""
    import jinja2
    from markupsafe import Markup
    from pygments.formatters import HtmlFormatter

    here = Path(__file__).parent
    style, policy = (here / "site.css").read_text(encoding="utf-8"), _POLICY
    if body:
        policy += f"; script-src {timeline.script_hash()}"
        light, dark = (HtmlFormatter(style=s).get_style_defs(".highlight") for s in ("default", "github-dark"))
        style += f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}"
    pages = jinja2.Environment(loader=jinja2.FileSystemLoader(here), autoescape=True)
    more = {"style": Markup(style), "policy": Markup(policy), "body": Markup(body), "signs": show.SIGNS}
    return pages.get_template("site.html").render(more | words)
