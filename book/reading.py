"""The extension of Sphinx that prepares the pages of the book.

The input is the repository, whose root is Sphinx's source folder, and the runs of the course. The output is the text of
each page: chapters with their results, exercises with folded solutions, tables of published figures, and docstrings.
``python book/reading.py`` prints the chapters that no run has executed in their present form, of all or of those given.
Source: the events of Sphinx, https://www.sphinx-doc.org/en/master/extdev/event_callbacks.html.
"""

import json
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

from dltutorial.course import exercises, notebooks, site

ROOT = Path(__file__).resolve().parents[1]
WIDGET = "application/vnd.jupyter.widget-view+json"
MARK = re.compile(r"^[ \t]*#+ ?(BEGIN|END) SOLUTION[ \t]*\n?|^[ \t]*# HINT:.*\n?", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.~}/:-])/(?:home|root|work|tmp|mnt|Users|scratch|global|opt|srv)/[\w.@/~-]*")
LINK_TO_FOLDER = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+/|pages/[^)\s]+)\)")
NAMES = re.compile(r"^ +\w+(?:, \w+)+: ")
# Terms of the glossary become no links in code, formulas, headings, links, tags, addresses and directives.
NOT_PROSE = re.compile(
    r"(^```.*?^```|^:::[^\n]*$|`[^`\n]+`|\$\$.+?\$\$|(?<!\\)\$[^$\n]+\$|^#[^\n]*$|!?\[[^\]]*\]\([^)]*\)|<[^>]+>"
    r"|https?://\S+)",
    re.DOTALL | re.MULTILINE,
)


def setup(app):
    """Register the extension. Sphinx calls this function."""
    app.add_config_value(
        "partial", "", "env"
    )  # -D partial=1 prints chapters without results if no run has executed them
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", mark_up_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", readable_defaults)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def read_page(app, name, content):
    """Replace the text of a page, which is the only item of ``content``."""
    if name.startswith("notebooks/"):
        content[0] = json.dumps(chapter(ROOT / f"{name}.ipynb", bool(app.config.partial)))
    elif name.startswith("exercises/"):
        content[0] = json.dumps(with_solutions(ROOT / "solutions" / f"{Path(name).name}.ipynb"))
    elif name == "book/published":
        content[0] += "".join(map(published, sorted((ROOT / "dltutorial" / "reference").glob("*.csv"))))
    else:
        content[0] = LINK_TO_FOLDER.sub(r"\1 (`\2`)", content[0])


def run_of(source):
    """Return the folder of the newest run that executed this notebook in its present form without an error, or None."""
    present = [(cell["cell_type"], "".join(cell["source"])) for cell in notebooks.read(source)["cells"]]
    runs = Path(os.environ.get("DLTUTORIAL_RUNS") or ROOT / "runs").glob("*/run.json")
    for run in sorted(runs, key=lambda file: file.stat().st_mtime, reverse=True):
        rows = json.loads(run.read_text(encoding="utf-8"))["chapters"]
        if notebooks.place(source) in [row["notebook"] for row in rows if row["status"] == "finished"]:
            cells = own_cells(notebooks.read(run.parent / notebooks.place(source)))
            if [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == present:
                return run.parent
    return None


def own_cells(notebook):
    """Return the cells of a notebook without the one that papermill inserted."""
    return [cell for cell in notebook["cells"] if "injected-parameters" not in cell["metadata"].get("tags", ())]


def executed(source, partial=False):
    """Return a chapter with its results, and a line about the machine that executed it in ``metadata["about"]``.

    Widgets are left out, because a picture stands beside each of them.
    """
    run = run_of(source)
    notebook = notebooks.read(source)
    if run is None:
        about = "**Not executed.** This chapter is printed without its results: run it to see them."
        if not partial:
            command = f"dltutorial run {notebooks.number(source)}, or give PARTIAL=1"
            logging.getLogger(__name__).warning("no run executed %s in its present form; run: %s", source.name, command)
    else:
        summary = json.loads((run / "run.json").read_text(encoding="utf-8"))
        torch_version = summary["versions"].get("torch")
        about = f"Executed on {summary['machine']}, preset `{summary['preset']}`, torch {torch_version}."
        results = own_cells(notebooks.read(run / notebooks.place(source)))
        for cell, result in zip(notebook["cells"], results, strict=True):
            if cell["cell_type"] == "code":
                outputs = [output for output in result["outputs"] if WIDGET not in output.get("data", {})]
                cell["outputs"] = json.loads(without_machine_paths(json.dumps(outputs)))
    return notebook | {"metadata": {"about": about}}


def chapter(source, partial=False):
    """Return an executed chapter with its number, and with links to the glossary."""
    notebook = executed(source, partial)
    cells = notebook["cells"]
    link_terms(cells)
    title = "".join(cells[0]["source"]).removeprefix("# ")
    about = notebook["metadata"]["about"]
    cells[0]["source"] = f"# {notebooks.number(source)} · {title}\n\n:::{{container}} ran\n{about}\n:::\n"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    python = {"name": "python", "pygments_lexer": "ipython3"}  # which knows lines that begin with ! or %
    return notebook | {"metadata": {"kernelspec": kernel, "language_info": python}}


def without_machine_paths(text):
    """Shorten paths of the machine to their last name. Pictures in base64 stay as they are."""
    parts = re.split(r"([A-Za-z0-9+/=]{200,})", text)
    parts[::2] = [MACHINE_PATH.sub(lambda match: "…/" + Path(match[0]).name, part) for part in parts[::2]]
    return "".join(parts)


def with_solutions(solution):
    """Return an exercise in which a folded cell with the solution follows each blank. myst-nb folds it (hide-input)."""
    blank = json.loads(exercises.blank_notebook(solution))
    prompts = {"code_prompt_show": "Show a solution", "code_prompt_hide": "Hide the solution"}
    cells = []
    for cell, solved in zip(blank["cells"], notebooks.read(solution)["cells"], strict=True):
        cells.append(cell)
        source = "".join(solved["source"])
        if source != "".join(cell["source"]):
            metadata = {"tags": ["hide-input"], "mystnb": prompts}
            source = MARK.sub("", source).strip("\n")
            cells.append(cell | {"id": f"{cell['id']}-solved", "metadata": metadata, "source": source})
    return blank | {"cells": cells}


def link_terms(cells):
    """Link the first use of each term of the glossary in the text of a chapter to the glossary."""
    glossary = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8").partition("{glossary}")[2]
    terms = {line.lower(): line for line in glossary.splitlines() if re.match(r"[^\s:%`]", line)}
    words = "|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w{{`-])({words})(s|es)?(?![\w`-])", re.IGNORECASE)

    def link(match):
        term = terms.pop(match[1].lower(), None)
        return f"{{term}}`{match[0]} <{term}>`" if term else match[0]

    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts = NOT_PROSE.split("".join(cell["source"]))
            parts[::2] = [pattern.sub(link, part) for part in parts[::2]]
            cell["source"] = "".join(parts)


def published(file):
    """Return a section with a table of published figures, below the comments that name its sources."""
    lines = file.read_text(encoding="utf-8").splitlines()
    about = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    header, *rows = [line for line in lines if not line.startswith("#")]
    table = "\n".join([header.replace("_", " "), *rows])
    title = file.stem.replace("_", " ")
    return f"\n\n## {title}\n\n{about}\n\n```{{csv-table}}\n:class: wide\n:header-rows: 1\n\n{table}\n```\n"


def mark_up_docstring(app, what, name, item, options, lines):
    """Make a code block of an indented block of a module's docstring, and one attribute of names such as ``x, y``."""
    result = []
    in_block = False
    for line in lines:
        if not line.startswith(" ") and line:
            in_block = False
        elif what == "module" and line and not in_block and result[-1] == "":
            result += [".. code-block:: text", ""]
            in_block = True
        result.append(NAMES.sub(lambda match: match[0].replace(", ", ","), line))
    lines[:] = result


def readable_defaults(app, what, name, item, options, signature, returns):
    """Replace ``<factory>``, the default of a dataclass that Sphinx cannot read."""
    return signature and signature.replace("<factory>", "..."), returns


def write_math(writer, node):
    """Write MathML, which a browser draws without a script or a font from the network."""
    is_display = isinstance(node, nodes.math_block)
    mathml = site.mathml(node.astext(), is_display)
    writer.body.append(f'<div class="math-display">{mathml}</div>' if is_display else mathml)
    raise nodes.SkipNode


if __name__ == "__main__":
    chapters = [Path(name).resolve() for name in sys.argv[1:]] or notebooks.chapters(ROOT / "notebooks")
    sys.stdout.write(" ".join(notebooks.number(source) for source in chapters if run_of(source) is None))
