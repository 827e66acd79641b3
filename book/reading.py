"""What Sphinx reads instead of the repository's own files: executed chapters, exercises with solutions behind a fold,
docstrings made ready for reStructuredText, mathematics as MathML, links to the glossary.

In: the repository, whose root is Sphinx's source folder, and the runs of the course. Out: the text of each page.
``python book/reading.py`` prints the chapters that no run has executed as they are today.
"""

import csv
import html
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
PLACE = re.compile(r"(?<![\w.~}/:-])/(?:home|root|work|tmp|mnt|Users|scratch|global|opt|srv)/[\w.@/~-]*")
NO_PAGE = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+/|pages/[^)\s]+)\)")  # a link to a folder, or to a tool's notebook
# What a link to the glossary leaves alone: code, mathematics, headings, links, tags, addresses, directives.
ASIDE = re.compile(
    r"(^```.*?^```|^:::[^\n]*$|`[^`\n]+`|\$\$.+?\$\$|(?<!\\)\$[^$\n]+\$|^#[^\n]*$|!?\[[^\]]*\]\([^)]*\)|<[^>]+>"
    r"|https?://\S+)",
    re.DOTALL | re.MULTILINE,
)


def setup(app):
    """Called by Sphinx."""
    app.add_config_value("partial", "", "env")  # -D partial=1: chapters that were not executed, without results
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", after_napoleon, priority=600)
    app.connect("autodoc-process-signature", readable_defaults)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def read_page(app, name, content):
    """Put what is to be read in the place of a file's text."""
    if name.startswith("notebooks/"):
        content[0] = json.dumps(chapter(ROOT / f"{name}.ipynb", bool(app.config.partial)))
    elif name.startswith("exercises/"):
        content[0] = json.dumps(with_solutions(ROOT / "solutions" / f"{Path(name).name}.ipynb"))
    elif name == "book/published":
        content[0] += "".join(map(published, sorted((ROOT / "dltutorial" / "reference").glob("*.csv"))))
    else:
        content[0] = NO_PAGE.sub(r"\1 (`\2`)", content[0])


def run_of(source):
    """The newest run that executed a notebook as it is today, to its end and without an error, or None."""
    runs = Path(os.environ.get("DLTUTORIAL_RUNS") or ROOT / "runs").glob("*/run.json")
    today = [(cell["cell_type"], "".join(cell["source"])) for cell in notebooks.read(source)["cells"]]
    for run in sorted(runs, key=lambda file: -file.stat().st_mtime):
        rows = json.loads(run.read_text(encoding="utf-8"))["chapters"]
        finished = [row["notebook"] for row in rows if row["status"] == "finished"]
        if source.name in finished:
            cells = own_cells(notebooks.read(run.parent / source.name))
            if [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == today:
                return run.parent
    return None


def own_cells(notebook):
    """Its cells without the one that papermill put in."""
    return [cell for cell in notebook["cells"] if "injected-parameters" not in cell["metadata"].get("tags", ())]


def chapter(source, partial=False):
    """A chapter as it ran: with its number, and where it ran, without widgets (a picture stands beside each)."""
    run, about = run_of(source), "**Not executed.** This chapter is printed without its results: run it to see them."
    made = notebooks.read(run / source.name if run else source)
    if run:
        told = json.loads((run / "run.json").read_text(encoding="utf-8"))
        about = f"Executed on {told['machine']}, preset `{told['preset']}`, torch {told['versions'].get('torch')}."
    elif not partial:
        again = f"dltutorial run {source.stem[:2]}, or give -D partial=1"
        logging.getLogger(__name__).warning("%s was not executed as it is today; run: %s", source.name, again)
    cells = own_cells(made)
    for cell in cells:
        if cell["cell_type"] == "code":
            kept = [output for output in cell["outputs"] if WIDGET not in output.get("data", {})]
            cell["outputs"] = json.loads(without_places(json.dumps(kept)))
    link_terms(cells)
    first = "".join(cells[0]["source"]).removeprefix("# ")
    cells[0]["source"] = f"# {source.stem[:2]} · {first}\n\n:::{{container}} ran\n{about}\n:::\n"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    python = {"name": "python", "pygments_lexer": "ipython3"}  # which knows lines that begin with ! or %
    return made | {"cells": cells, "metadata": {"kernelspec": kernel, "language_info": python}}


def without_places(text):
    """A place on the machine is left with its last name; pictures are letters and slashes, and stay."""
    parts = re.split(r"([A-Za-z0-9+/=]{200,})", text)
    parts[::2] = [PLACE.sub(lambda hit: "…/" + hit[0].rstrip("/").rpartition("/")[2], part) for part in parts[::2]]
    return "".join(parts)


def with_solutions(solution):
    """The exercise as a learner gets it, each blank followed by its solution in a fold (myst-nb's hide-input)."""
    blank, cells = json.loads(exercises.blank_notebook(solution)), []
    words = {"code_prompt_show": "Show a solution", "code_prompt_hide": "Hide the solution"}
    for cell, solved in zip(blank["cells"], notebooks.read(solution)["cells"], strict=True):
        cells.append(cell)
        source = "".join(solved["source"])
        if source != "".join(cell["source"]):
            fold = {"metadata": {"tags": ["hide-input"], "mystnb": words}, "source": MARK.sub("", source).strip("\n")}
            cells.append(cell | fold | {"id": f"{cell['id']}-solved"})
    return blank | {"cells": cells}


def link_terms(cells):
    """The first time a chapter's prose uses a term of the glossary, the word leads to it."""
    glossary = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8").partition("{glossary}")[2]
    spelled = {line.lower(): line for line in glossary.splitlines() if re.match(r"[^\s:%`]", line)}
    words = "|".join(re.escape(term) for term in sorted(spelled, key=len, reverse=True))

    def role(hit):
        term = spelled.pop(hit[1].lower(), None)
        return f"{{term}}`{hit[0]} <{term}>`" if term else hit[0]

    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts = ASIDE.split("".join(cell["source"]))
            pattern = rf"(?<![\w{{`-])({words})(s|es)?(?![\w`-])"
            parts[::2] = [re.sub(pattern, role, part, flags=re.IGNORECASE) for part in parts[::2]]
            cell["source"] = "".join(parts)


def published(file):
    """A file of published figures as a table under what it says of its sources; as HTML, in which * is no markup."""
    lines = file.read_text(encoding="utf-8").splitlines()
    about = html.escape(" ".join(line.lstrip("# ") for line in lines if line.startswith("#")))
    head, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    made = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell or '–')}</{tag}>" for cell in row) + "</tr>"
        for tag, row in [("th", [name.replace("_", " ") for name in head]), *(("td", row) for row in rows)]
    )
    body = f"<p>{about}</p><div class='wide'><table class='table'>{made}</table></div>"
    return f"\n\n## {file.stem.replace('_', ' ')}\n\n```{{raw}} html\n{body}\n```\n"


def before_napoleon(app, what, name, item, options, lines):
    """Tables and indented blocks keep their lines; ``|x|`` is a norm; a colon parts no type from its meaning."""
    made, block = [], False
    for number, line in enumerate(lines):
        indented = what == "module" and line.startswith("    ") and (block or not lines[number - 1].strip())
        verbatim = line.startswith("|") or (indented and not re.match(r"\w[\w ]*:$", margin(lines[:number])))
        if verbatim and not block:
            made += ["", ".. code-block:: text", ""]
        if block and not verbatim and line.strip():
            made.append("")
        block = verbatim or (block and not line.strip())
        parts = re.split(r"(``[^`]+``)", line)
        parts[::2] = [part if verbatim else part.replace("|", r"\|") for part in parts[::2]]
        made.append("    " * line.startswith("|") + "".join(parts))
        of_section = number and lines[number - 1].strip() in ("Returns:", "Yields:")
        if of_section or (number == 0 and what in ("property", "attribute")):
            made[-1] = made[-1].replace(":", COLON)
    together = re.compile(r"^( +)(\w+(?:, \w+)+): ")  # "low, high: its ends" is one attribute
    lines[:] = [together.sub(lambda hit: hit[0].replace(", ", ","), line) for line in made]


COLON = "\ue000"  # stands for a colon while napoleon reads; of Unicode's private use, so no docstring holds it


def margin(before):
    """The last line that stands at the margin."""
    return next((line for line in reversed(before) if line[:1].strip()), "")


def after_napoleon(app, what, name, item, options, lines):
    """Give the colons back."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def readable_defaults(app, what, name, item, options, signature, returns):
    """Sphinx cannot read ``<factory>``, which stands for a default made anew for each object."""
    return signature and signature.replace("<factory>", "..."), returns


def write_math(writer, node):
    """MathML is drawn by the browser itself: no script and no font has to be fetched."""
    display = isinstance(node, nodes.math_block)
    made = site.mathml(node.astext(), display)
    writer.body.append(f'<div class="math-display">{made}</div>' if display else made)
    raise nodes.SkipNode


if __name__ == "__main__":
    chapters = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    sys.stdout.write(" ".join(source.stem[:2] for source in chapters if run_of(source) is None))
