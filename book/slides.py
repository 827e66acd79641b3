"""Write one slide deck for each core chapter (``make slides``).

The input is the chapters with the results of the newest run, as in the book, and the tag ``slideshow`` of their cells.
A cell of the type ``slide`` begins a slide, and one of the type ``fragment`` continues it. A slide has a heading, a
drawing, a figure or some code, and one or two sentences. All other text becomes the notes of the speaker. The output is
``NN_….slides.html`` for reveal.js, which needs no network.
Source: https://nbconvert.readthedocs.io/en/latest/usage.html#reveal-js-html-slideshow.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import reading

from dltutorial.course import notebooks, site
from dltutorial.course.execute import quick_imports

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```.*?^```\n?", re.DOTALL | re.MULTILINE)
SECTION = re.compile(r"^(?=##? )", re.MULTILINE)
ITEM = re.compile(r"^- ", re.MULTILINE)
DRAWING = re.compile(r"!\[[^\]]*\]\([^)]*\)")
SENTENCE = re.compile(r"(?<=[.!?])(?<!\bal\.)\s+(?=[^a-z\s])")
# A sentence about the notebook is not for a slide.
OF_NOTEBOOK = re.compile(r"\b(?:cells?|claims?|notebook|following|[Ss]ections? \d+|[Cc]hapters? \d+)\b")
REFERS_BACK = re.compile(r"(?:It|Its|They|Their|This|These)\b")
# What a notebook says about its folded cells is not for a speaker.
OF_FOLDED = re.compile(
    r"\b(?:Folded cells|You do not need to read|They (?:set up|prepare) the|[A-Z][^.:|\n]*folded cell)[^.:|\n]*[.:]\s*"
)
GUESS = re.compile(r" · <span[^>]*>guess</span> \S+(?=[^<]*</div>)")
SENTENCE_WORDS = 40  # of the sentences on a slide, if there are two
LIST_WORDS = 110  # of a list whose items have more than one sentence
LINES = 20  # of code and of what it prints
ROWS = 9  # of tables above a claim
HTML = "text/html"


class Deck:
    """The slides of a chapter. ``cells`` are those of a notebook for nbconvert, each with its slide type."""

    def __init__(self, cells):
        self.cells = []
        self.heading = ""  # of the present section
        self.notes = []  # of the present slide
        self.waiting = []  # texts for the notes of the next slide
        self.has_result = False  # whether the present slide ends with the output of the cell before
        for cell in cells:
            add = self.add_code if cell["cell_type"] == "code" else self.add_text
            add(cell, cell["metadata"].get("slideshow", {}).get("slide_type"))
        self.notes += self.waiting
        self.end()

    def begin(self, source):
        """Begin a slide with this text."""
        self.end()
        self.notes, self.waiting = self.waiting, []
        self.cells.append(text_cell(source, "slide"))

    def end(self):
        """Write the notes of the present slide."""
        if self.cells:
            self.cells.append(text_cell(DRAWING.sub("", "\n\n".join(self.notes)), "notes"))

    def add_code(self, cell, kind):
        """A slide that begins with code repeats the heading of its section. A takeaway has its own words."""
        outputs = cell["outputs"]
        self.has_result = bool(kind and outputs)
        if kind == "slide":
            is_takeaway = {kind_of(output) for output in outputs} == {"takeaway"}
            self.begin("" if is_takeaway else self.heading)
        if kind:
            is_question = any(GUESS.search(html_of(output)) for output in outputs)
            is_folded = is_question or "hide-input" in cell["metadata"].get("tags", [])
            source = "".join(cell["source"])
            n_lines = LINES if source.startswith(notebooks.WRITES) else len(source.splitlines()) * (not is_folded)
            metadata = {"tags": ["hide-input"] * is_folded, "slideshow": {"slide_type": "-"}}
            self.cells.append(cell | {"metadata": metadata, "outputs": on_slide(outputs, LINES - n_lines)})

    def add_text(self, cell, kind):
        """The text before the first heading says what the output above shows, so it belongs to that slide."""
        before, *sections = SECTION.split(FENCE.sub("", "".join(cell["source"])))
        before = OF_FOLDED.sub("", before)
        drawing = DRAWING.search(before)
        if kind == "slide" and (drawing or not sections):
            start = drawing.start() if drawing else 0
            before, more = before[:start], before[start:]
            sections.insert(0, f"{self.heading}\n{more}")
        if self.has_result and kind != "notes" and short(before):
            self.cells.append(text_cell(short(before), "fragment"))
        (self.notes if self.has_result else self.waiting).append(before)
        chosen = with_slide(sections) if kind == "slide" else []
        for section in sections:
            self.heading = "## " + section.partition("\n")[0].lstrip("# ")
            self.waiting.append(section)
            if section in chosen:
                self.begin(beginning(section))
        self.has_result = False


def with_slide(sections):
    """Return the sections of a cell that get a slide: the title, or those with a drawing or a formula, or the last."""
    if sections[0].startswith("# "):
        return sections[:1]
    drawn = [section for section in sections if DRAWING.search(section)]
    return drawn or [section for section in sections if "$$" in section][:1] or sections[-1:]


def beginning(section):
    """Return what a slide shows of a section: the heading, a drawing and the first sentences.

    Without a drawing, it also shows the first formula with the sentence before it, and the first list.
    """
    heading, _, text = section.partition("\n")
    drawings = DRAWING.findall(text)
    formula = re.search(r"([^\n]*)\n+(\$\$.*?\$\$)", text, re.DOTALL)
    first, *prose = [block for block in blocks(text) if not block.startswith(("$$", "|", "!["))] or [""]
    shown = [heading, *drawings, short(first)]
    if formula and not drawings:
        before = SENTENCE.split(formula[1])[-1]
        shown += [before] * (before not in shown[-1]) + [formula[2]]
    lists = [block for block in prose if ITEM.search(block) and not ITEM.search(first)]
    if lists and not drawings:
        shown.append(short(lists[0]))
    return "\n\n".join(shown).replace("The takeaway above", "The slide before")


def short(text):
    """Return the first two sentences of a text and its list. A long list keeps the first sentence of each item."""
    lead, *items = ITEM.split(blocks(text)[0])
    per_item = 1 if len(" ".join(items).split()) > LIST_WORDS else None
    items = [f"- {' '.join(sentences(item)[:per_item])}" for item in items]
    two = sentences(lead)[:2]
    if len(" ".join(two).split()) > SENTENCE_WORDS:
        two = two[:1]
    lead = " ".join(two)
    return "\n".join([lead, "", *items] if items else [re.sub(":$", ".", lead)])


def sentences(text):
    """Return the sentences of a text without those about the notebook and those that refer back to them.

    The question in bold stays complete.
    """
    if re.fullmatch(r"\*\*[^*]+\*\*", text.strip()):
        return [text.strip()]
    kept, is_left_out = [], False
    for sentence in SENTENCE.split(text.strip()):
        is_left_out = bool(OF_NOTEBOOK.search(sentence) or (is_left_out and REFERS_BACK.match(sentence)))
        kept += [sentence] * (not is_left_out)
    return kept


def blocks(text):
    """Return the paragraphs, lists, tables and formulas of a text."""
    return re.split(r"\n\s*\n", text.strip())


def on_slide(outputs, n_lines):
    """Return the figures and takeaways of a cell, or else what it prints in some lines, its tables, and a claim or two.

    The guess of a run without a learner says nothing, so a blank replaces it.
    """
    figures, claims, takeaways, tables = (
        [output for output in outputs if kind_of(output) == kind] for kind in ("figure", "claim", "takeaway", "table")
    )
    if figures:
        return figures + takeaways
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream").splitlines()
    lines = printed[: max(0, n_lines)] + ["…"] * (0 < n_lines < len(printed))
    stream = [{"output_type": "stream", "name": "stdout", "text": "\n".join(lines)}] if lines else []
    tables = [
        table | {"data": {HTML: GUESS.sub(" ____", html_of(table))}} if html_of(table) else table for table in tables
    ]
    n_rows = sum(html_of(table).count("<tr") for table in tables)
    if n_rows > ROWS:
        tables, claims = tables[-1:], []
    return stream + tables + takeaways + claims[: 1 if tables else 2]


def kind_of(output):
    """Return what an output is: a figure, a claim, a score, a takeaway, or a table. Printed text is None."""
    kinds = [kind for kind in ("figure", "claim", "score") if f"dlt-{kind}" in html_of(output)]
    if not kinds and output.get("data"):
        kinds = ["takeaway" if "text/markdown" in output["data"] else "table"]
    return kinds[0] if kinds else None


def html_of(output):
    """Return the HTML of an output, or an empty text."""
    return "".join(output.get("data", {}).get(HTML, ""))


def text_cell(source, kind):
    """Return a cell of text with a slide type."""
    return {"cell_type": "markdown", "metadata": {"slideshow": {"slide_type": kind}}, "source": source}


def write(source, folder, partial):
    """Write the deck of a chapter into a folder. Formulas become MathML, and links to other notebooks become words."""
    quick_imports()
    import nbformat
    from nbconvert import SlidesExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
    from traitlets.config import Config

    class Renderer(IPythonRenderer):
        def block_math(self, body):
            return site.mathml(body, display=True)

        def inline_math(self, body):
            return site.mathml(body, display=False)

        def link(self, text, url, title=None):
            return super().link(text, url, title) if ":" in url else text

    settings = Config()
    settings.SlidesExporter.template_file = str(ROOT / "book" / "_templates" / "slides.html.j2")
    settings.SlidesExporter.reveal_url_prefix = "reveal.js"
    settings.SlidesExporter.reveal_theme = "white"
    settings.SlidesExporter.exclude_input_prompt = settings.SlidesExporter.exclude_output_prompt = True
    settings.CSSHTMLHeaderPreprocessor.style = "default"
    settings.TagRemovePreprocessor.enabled = True
    settings.TagRemovePreprocessor.remove_input_tags = {"hide-input"}
    exporter = SlidesExporter(config=settings)
    renderer = Renderer(escape=False, embed_images=True, path=str(source.parent), exclude_anchor_links=True)
    exporter.register_filter("markdown2html", MarkdownWithMath(renderer).render)
    executed = reading.executed(source, partial)
    cells = Deck(executed["cells"]).cells
    cells.insert(1, text_cell(executed["metadata"]["about"], "-"))
    deck = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})
    html, _ = exporter.from_notebook_node(nbformat.v4.reads(deck), {"metadata": {"name": source.stem}})
    (folder / f"{source.stem}.slides.html").write_text(html, encoding="utf-8")


if __name__ == "__main__":
    to, partial, *chapters = sys.argv[1:]
    shutil.copytree(ROOT / ".venv" / "node" / "node_modules" / "reveal.js" / "dist", Path(to) / "reveal.js" / "dist")
    for file in chapters:
        write(Path(file).resolve(), Path(to), bool(partial))
