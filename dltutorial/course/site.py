"""The pages of a run: ``index.html`` and one page for each executed notebook. No request to any network, and no script
but the one that draws timelines, inside their frames.

In: a run's folder with executed notebooks, and what came of them. Out: HTML files beside them, by the
template ``site.html`` and nbconvert's "basic" one, which has no head, so nothing is asked of a content network.
Mathematics becomes MathML. Widgets need a kernel, so they are left out: a static picture stands beside each.
"""

import html
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dltutorial import paths
from dltutorial.course import notebooks, show
from dltutorial.course.execute import quick_imports
from dltutorial.profile import timeline

# What an output brings along (a script, an address) is forbidden by the page itself; frames inherit that.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_HTML = Path(__file__).with_suffix(".html")
_WIDGET = "application/vnd.jupyter.widget-view+json"
_FIGURE = re.compile(r'<img[^>]*\bsrc="data:image/[^>]*>')


def write(folder: Path, about: dict[str, Any], claims: Mapping[str, list[dict[str, Any]]]) -> Path:
    """Write the pages of the run in ``folder``, which holds the executed notebooks; returns the path of its index.

    ``about``: as in its ``run.json``; ``claims``: their records, by chapter. CourseError: a page cannot be written.
    """
    from pygments.formatters import HtmlFormatter

    css = Path(__file__).with_name("site.css").read_text(encoding="utf-8")
    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in ("default", "github-dark"))
    colours = f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}"
    pages = {row["notebook"] for row in about["chapters"] if (folder / row["notebook"]).is_file()}
    rows = []
    for row in about["chapters"]:
        more: dict[str, Any] = {"title": Path(row["notebook"]).stem, "told": claims.get(row["chapter"], [])}
        if row["notebook"] in pages:
            notebook = _read(folder / row["notebook"])
            more |= {"title": notebooks.title(notebook), "figure": _first_figure(notebook)}
            more["page"] = Path(row["notebook"]).with_suffix(".html").name
            inside = f'<nav><a href="index.html">← all chapters</a></nav><article>{body(notebook, pages)}</article>'
            script = f"script-src {timeline.script_hash()}"  # a notebook's page lets timelines draw
            paths.write_text(folder / more["page"], page(more["title"], css + colours, inside, script))
        rows.append(row | more)
    text = page("Deep learning at scale: a run of the course", css, run=about, chapters=rows, signs=show.SIGNS)
    paths.write_text(folder / "index.html", text)
    return folder / "index.html"


def page(title: str, css: str, inside: str = "", script: str = "", **words: Any) -> str:
    """A page that loads nothing: HTML ``inside`` it, or ``words`` of an index; it allows this ``script`` only."""
    policy, template = Markup("; ".join(filter(None, (_POLICY, script)))), show.template(_HTML)
    return template.render(words, title=title, style=Markup(css), body=Markup(inside), policy=policy)


def body(notebook: Any, pages: Collection[str] = (), **options: Any) -> str:
    """The cells of ``notebook`` as HTML, mathematics as MathML.

    Args:
        notebook: with its outputs.
        pages: file names of the notebooks that have a page. Links to these lead there; links to others become text.
        options: of nbconvert's HTMLExporter.
    """
    quick_imports()
    from nbconvert.exporters import HTMLExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def block_math(self, body: str) -> str:
            return mathml(body, display=True)

        def inline_math(self, body: str) -> str:
            return mathml(body, display=False)

        def link(self, text: str, url: str, title: str | None = None) -> str:
            file, _, part = url.partition("#")
            if ":" in url or not file.endswith(".ipynb"):
                return super().link(text, url, title)
            there = file.removesuffix("ipynb") + "html" + (part and f"#{part}")
            return super().link(text, there, title) if file in pages else text

    markdown = MarkdownWithMath(Renderer(escape=False, exclude_anchor_links=True))
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True, **options)
    exporter.register_filter("markdown2html", markdown.render)
    return exporter.from_notebook_node(notebook)[0]


def mathml(latex: str, display: bool) -> str:
    """MathML for a formula; the formula itself, as code, where it cannot be read."""
    from latex2mathml.converter import convert

    try:
        return convert(latex.strip(), display="block" if display else "inline")
    except Exception:
        return f"<code>{html.escape(latex)}</code>"


def _read(path: Path) -> Any:
    """An executed notebook without its widgets."""
    quick_imports()
    import nbformat

    notebook = nbformat.read(path, 4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    return notebook


def _first_figure(notebook: Any) -> Markup:
    """The first of the course's figures among the outputs, an ``img``; empty where there is none."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    found = (_FIGURE.search(output.get("data", {}).get("text/html", "")) for output in outputs)
    return Markup(next((figure[0] for figure in found if figure), ""))
