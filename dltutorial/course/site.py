"""Write the pages of a run: ``index.html`` and one page for each executed notebook.

The input is the folder of a run with its executed notebooks, and the results of the chapters. The output is HTML files
in the same folder, made by the template ``site.html`` and by nbconvert's template "basic"
(https://nbconvert.readthedocs.io). The pages ask nothing of a network, and the only script in them draws timelines.
Images of the text (``![words](images/NAME.svg)``) are in the pages. Mathematics becomes MathML. The code of a cell that
JupyterLab hides is folded. Widgets need a kernel, so they are left out; a picture stands beside each of them.
"""

import base64
import mimetypes
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from dltutorial import paths
from dltutorial.course import notebooks, show
from dltutorial.course.execute import quick_imports
from dltutorial.profile import timeline

# The page forbids scripts and addresses that an output may bring along. The frames in a page inherit this policy.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_HTML = Path(__file__).with_suffix(".html")
_WIDGET = "application/vnd.jupyter.widget-view+json"
# A cell of nbconvert's template, in which hidden code is folded.
_CELLS = """{%- extends 'basic/index.html.j2' -%}
{%- block input -%}
{%- if cell.metadata.get("jupyter", {}).get("source_hidden") or "hide-input" in cell.metadata.get("tags", []) -%}
<details class="code"><summary>Show the code</summary>{{ super() }}</details>
{%- else -%}{{ super() }}{%- endif -%}
{%- endblock input -%}"""


def write(folder: Path, about: dict[str, Any], claims: Mapping[str, list[dict[str, Any]]]) -> Path:
    """Write the pages of a run.

    Args:
        folder: The folder of the run, which holds the executed notebooks.
        about: The content of its ``run.json``.
        claims: The records of the claims. The keys are the numbers of the chapters.

    Returns:
        The path of the index.

    Raises:
        CourseError: A page cannot be written.
    """
    css = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    executed = {row["notebook"] for row in about["chapters"] if (folder / row["notebook"]).is_file()}
    rows = []
    for row in about["chapters"]:
        source = Path(row["notebook"])
        entry = row | {"title": source.stem, "claim_records": claims.get(row["chapter"], [])}
        if row["notebook"] in executed:
            notebook = _read(folder / source)
            entry["title"] = notebooks.title(notebook)
            entry["page"] = source.with_suffix(".html").as_posix()
            article = body(notebook, executed, source.parent.as_posix(), folder)
            top = "../" * len(source.parent.parts)
            paths.write_text(folder / entry["page"], _chapter_page(entry["title"], css + _code_colours(), article, top))
        rows.append(entry)
    index = show.template(_HTML).render(
        title="Deep learning at scale: a run of the course",
        style=Markup(css),
        policy=Markup(_POLICY),
        run=about,
        chapters=rows,
        signs=show.SIGNS,
    )
    paths.write_text(folder / "index.html", index)
    return folder / "index.html"


def _chapter_page(title: str, css: str, article: str, top: str) -> str:
    """Return the page of a chapter, which allows the script of the timelines. ``top`` leads to the run's folder."""
    return show.template(_HTML).render(
        title=title,
        style=Markup(css),
        policy=Markup(f"{_POLICY}; script-src {timeline.script_hash()}"),
        body=Markup(f'<nav><a href="{top}index.html">← all chapters</a></nav><article>{article}</article>'),
    )


def _code_colours() -> str:
    """Return the style sheet that colours code, for light and for dark pages."""
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}"


def body(notebook: Any, pages: Collection[str] = (), below: str = ".", folder: Path = Path()) -> str:
    """Return the cells of a notebook as HTML.

    Args:
        notebook: A notebook with its outputs, as nbformat reads it.
        pages: The notebooks that have a page, such as "03_feed.ipynb" or "further/03_feed.ipynb". Links to these lead
            to the pages. Links to other notebooks become text.
        below: The folder of the notebook below the folder of the run.
        folder: The folder of the run, which also holds the images of the course.
    """
    quick_imports()
    import nbconvert
    from nbconvert.exporters import HTMLExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        """Renders Markdown, with formulas as MathML and links between pages."""

        def block_math(self, body: str) -> str:
            return mathml(body, display=True)

        def inline_math(self, body: str) -> str:
            return mathml(body, display=False)

        def link(self, text: str, url: str, title: str | None = None) -> str:
            file, hash_sign, anchor = url.partition("#")
            if ":" in url or not file.endswith(".ipynb"):
                return super().link(text, url, title)
            if os.path.normpath(f"{below}/{file}") not in pages:
                return text
            page = file.removesuffix("ipynb") + "html"
            return super().link(text, page + hash_sign + anchor, title)

        def image(self, text: str, url: str, title: str | None = None) -> str:
            file = folder / below / url
            return super().image(text, _data_url(file) if file.is_file() else url, title)

    renderer = Renderer(escape=False, exclude_anchor_links=True)
    # By default, nbconvert looks in the folder of this Python. But nbconvert may be a package of another Python.
    templates = [str(Path(nbconvert.__file__).parents[4] / "share/jupyter/nbconvert/templates")]
    exporter = HTMLExporter(
        template_file="cells",
        extra_loaders=[jinja2.DictLoader({"cells": _CELLS})],
        extra_template_basedirs=templates,
        template_data_paths=templates,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    exporter.register_filter("markdown2html", MarkdownWithMath(renderer).render)
    return exporter.from_notebook_node(notebook)[0]


def _data_url(file: Path) -> str:
    """Return an image as the address of a picture that is in the page."""
    data = base64.b64encode(file.read_bytes()).decode("ascii")
    return f"data:{mimetypes.guess_type(file)[0]};base64,{data}"


def mathml(latex: str, display: bool) -> str:
    """Return a formula as MathML.

    Args:
        latex: The formula.
        display: Whether the formula has a line of its own.
    """
    from latex2mathml.converter import convert

    return convert(latex.strip(), display="block" if display else "inline")


def _read(path: Path) -> Any:
    """Return an executed notebook without its widgets."""
    quick_imports()
    import nbformat

    notebook = nbformat.read(path, 4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    return notebook
