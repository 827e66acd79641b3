"""A notebook made into one page: the learner's report, and an instructor's view of a class.

In: ``pages/report.ipynb`` or ``pages/class.ipynb``, its parameters, the style sheet beside it. Out: one HTML file that
loads nothing and runs nothing: its style and pictures are in it, code is left out, and its policy forbids the rest. The
notebooks make their parts with the functions of ``pages/parts.html``, which escape what comes in as plain text.
"""

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dltutorial import paths
from dltutorial.course import notebooks, show
from dltutorial.course.execute import quick_imports
from dltutorial.errors import CourseError


def write(name: str, out: Path | None = None, refresh_s: float | None = None, **parameters: Any) -> Path:
    """Execute ``pages/<name>.ipynb`` with these parameters, and write what it shows as one page; returns where it is.

    Args:
        name: of the notebook, and of its style sheet.
        out: the page; None: ``<name>.html`` in the runs folder.
        refresh_s: how often a browser is to load it again; None: never.
        parameters: as in the notebook's cell tagged ``parameters``.

    Raises:
        CourseError: what the notebook says, such as of damaged records; it does not run; the page cannot be written, or
            something else is there.
    """
    quick_imports()
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    shown = out or paths.runs_dir() / f"{name}.html"
    out = Path(os.path.realpath(shown))  # a link stays one
    if out.is_symlink():
        raise CourseError(f"{shown} is a link that leads round to itself; remove it, or give another name")
    paths.keep_others(shown, lambda text: f'content="dltutorial {name}"' in text[:500], f"page of the {name}")
    source = paths.course_folder("pages") / "pages" / f"{name}.ipynb"
    try:
        css, plain = paths.read_text(source.with_suffix(".css")), notebooks.read(source)
        nbformat.validate(notebook := nbformat.from_dict(plain))
        if not any("parameters" in cell["metadata"].get("tags", ()) for cell in plain["cells"]):
            raise ValueError("no cell has the tag parameters, so it would show another folder")
    except (OSError, ValueError, nbformat.ValidationError) as error:
        told = str(error).partition("\n")[0]
        raise CourseError(f"pages/{name}.ipynb or .css cannot be used ({told}); restore them from git") from error
    here_is_no_code = "--InteractiveShellApp.ignore_cwd=True"  # in a class's folder all may write
    try:
        with paths.environment({"PYTHONSAFEPATH": "1"}):
            done = papermill.execute_notebook(
                notebook, None, parameters, kernel_name="python3", progress_bar=False, shutdown_kernel="immediate",
                language="python", extra_arguments=["--log-level=ERROR", here_is_no_code],
            )  # fmt: skip
    except PapermillExecutionError as problem:
        line = problem.evalue.strip().partition("\n")[0]
        where = f"{name}.ipynb, cell {problem.cell_index}: {problem.ename}: "  # papermill has put in a cell of its own
        told = line if problem.ename == "CourseError" else f"{where}{line}; mend the notebook, or restore it with git"
        raise CourseError(told) from None
    except RuntimeError as problem:
        if type(problem).__name__ == "DeadKernelError":
            why = f"the kernel of {name}.ipynb died; mend the notebook, or restore it with git"
        elif "Kernel died" in str(problem):
            why = "the kernel python3 does not start; see jupyter kernelspec list, and .venv/bin/dltutorial doctor"
        else:
            raise
        raise CourseError(why) from problem
    said = "".join(one.text for cell in done.cells for one in cell.get("outputs", ()) if one.get("name") == "stderr")
    sys.stderr.writelines(re.findall("^dltutorial: .*\n", said, re.MULTILINE))  # of records that it passed over
    page, was = _page(done, css, refresh_s, name), paths.held(out)
    before, _, seal = (was or "").rpartition("<!-- ")
    if os.path.lexists(out) and seal.replace("\r\n", "\n") != _seal(before):
        print(f"the page that you have edited is now {paths.set_aside(out).name}")
        was = None
    paths.replace_text(out, was, f"{page}<!-- {_seal(page)}")
    return shown


def _seal(page: str) -> str:
    """The end of a page that nobody has edited, whichever ends its lines have."""
    return f"{hashlib.blake2b(repr(page.splitlines()).encode(), digest_size=8).hexdigest()} -->\n"


def parts() -> Any:
    """The functions of ``pages/parts.html``: ``section``, ``table``, ``folded``, ``anchor``."""
    return show.template(paths.course_folder("pages") / "pages" / "parts.html").module


def _page(notebook: Any, css: str, refresh_s: float | None, maker: str) -> str:
    """What the notebook's cells show, under a head of its own: its ``header`` and its ``nav`` stand first."""
    from dltutorial.course import site

    notebook.cells = [cell for cell in notebook.cells if "remove-cell" not in cell.metadata.get("tags", ())]
    for cell in notebook.cells:  # a library's warnings name files of this machine
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    body = site.body(notebook, exclude_input=True)
    head, nav = ("".join(re.findall(f"<{tag}\\b.*?</{tag}>", body, re.DOTALL)[:1]) for tag in ("header", "nav"))
    title = re.search("<h1.*?>(.*?)</h1>", body, re.DOTALL)
    main = body.replace(head + nav, "", 1)
    return site.page(
        Markup(title[1] if title else "dltutorial"), css, f'{head}<div class="page">{nav}<main>{main}</main></div>',
        refresh_s=max(1, round(refresh_s)) if refresh_s else 0, maker=maker,
    )  # fmt: skip
