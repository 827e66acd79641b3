"""A notebook made into one page: the learner's report, and an instructor's view of a class.

In: ``pages/report.ipynb`` or ``pages/class.ipynb``, its parameters, the style sheet beside it. Out: one HTML file that
loads nothing and runs nothing: its style and pictures are in it, code is left out, and its policy forbids the rest. The
notebooks make their parts with ``section`` and ``table``, which escape whatever comes in as plain text (markupsafe).
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from dltutorial import paths
from dltutorial.course.execute import quick_imports
from dltutorial.errors import CourseError

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def report(files: Iterable[Path] = (), out: Path | None = None) -> Path:
    """Write the report of these records (none: all of the runs folder); returns where it is.

    Raises:
        CourseError: a file is missing or damaged, the notebook does not run, or the page cannot be written.
    """
    named = [str(Path(file).absolute()) for file in files]
    return write("report", out or paths.runs_dir() / "report.html", files=named)


def write(name: str, out: Path, refresh_s: float | None = None, **parameters: Any) -> Path:
    """Execute ``pages/<name>.ipynb`` with these parameters, and write what it shows as one page; returns ``out``.

    Args:
        name: of the notebook, and of its style sheet.
        out: the page.
        refresh_s: how often a browser is to load it again; None: never.
        parameters: as in the notebook's cell tagged ``parameters``.

    Raises:
        CourseError: the notebook does not run, or the page cannot be written.
    """
    with quick_imports():
        import nbformat
        import papermill
        from papermill.exceptions import PapermillExecutionError
    source = paths.course_folder("pages") / "pages" / f"{name}.ipynb"
    notebook = nbformat.read(source, 4)
    try:
        done = papermill.execute_notebook(
            notebook, None, parameters, kernel_name="python3", progress_bar=False, shutdown_kernel="immediate",
            language="python", extra_arguments=["--log-level=ERROR"],
        )  # fmt: skip
    except PapermillExecutionError as problem:
        line = problem.evalue.strip().partition("\n")[0]
        where = f"{name}.ipynb, cell {problem.cell_index}: {problem.ename}: "  # papermill has put in a cell of its own
        told = line if problem.ename == "CourseError" else f"{where}{line}; mend the notebook, or restore it with git"
        raise CourseError(told) from None
    paths.write_text(out, _page(done, source.with_suffix(".css").read_text("utf-8"), refresh_s))
    return Path(out)


def section(topic: str, finding: str, *body: str, about: str = "", kind: str = "") -> Markup:
    """A part of a page: its topic, what was found, and what shows it; ``about`` stands small beside the topic."""
    head = Markup('<p class="topic">{}{}</p><h2>{}</h2>').format(
        topic, Markup(' <span class="chapters">{}</span>').format(about) if about else "", finding
    )
    inside = head + Markup("").join(body)
    return Markup('<section id="{}" class="{}">{}</section>').format(anchor(topic), kind, inside)


def anchor(topic: str) -> str:
    """What a link to a section leads to: its topic in small letters, with dashes."""
    return "-".join(topic.lower().split())


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table, or nothing where there is no row; a head that begins with "# " is a column of numbers."""
    kinds = [Markup(' class="number"') if name.startswith("# ") else "" for name in head]
    names = [name.removeprefix("# ") for name in head]
    heads = Markup("").join(
        Markup("<th scope=col{}>{}</th>" if name else "<td{}>{}</td>").format(kind, name)
        for name, kind in zip(names, kinds, strict=True)
    )
    lines = [
        Markup("").join(
            Markup('<td{} data-head="{}">{}</td>').format(kind, name, cell)
            for cell, kind, name in zip(row, kinds, names, strict=True)
        )
        for row in rows
    ]
    body = Markup("").join(Markup("<tr>{}</tr>").format(line) for line in lines)
    made = Markup('<div class="table"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>')
    return made.format(heads, body) if lines else Markup()


def folded(summary: str, body: str) -> Markup:
    """Something long, behind a line to press; nothing where there is nothing."""
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, body) if body else Markup()


def _page(notebook: Any, css: str, refresh_s: float | None) -> str:
    """What the notebook's cells show, under a head of its own: its ``header`` and its ``nav`` stand first."""
    with quick_imports():
        from nbconvert.exporters import HTMLExporter
    notebook.cells = [cell for cell in notebook.cells if "remove-cell" not in cell.metadata.get("tags", ())]
    for cell in (
        cell for cell in notebook.cells if "outputs" in cell
    ):  # a library's warnings name files of this machine
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    exporter = HTMLExporter(template_name="basic", exclude_input=True, exclude_anchor_links=True)
    exporter.exclude_output_prompt = True
    body = exporter.from_notebook_node(notebook)[0]
    head, nav = ("".join(re.findall(f"<{tag}\\b.*?</{tag}>", body, re.DOTALL)[:1]) for tag in ("header", "nav"))
    body = body.replace(head + nav, "", 1)
    title = re.search("<h1.*?>(.*?)</h1>", head + body, re.DOTALL)
    again = f'<meta http-equiv="refresh" content="{max(1, round(refresh_s))}">' if refresh_s else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{again}'
        f"<title>{title[1] if title else escape('dltutorial')}</title><style>{css}</style></head><body>\n"
        f'{head}<div class="page">{nav}<main>{body}</main></div></body></html>\n'
    )
