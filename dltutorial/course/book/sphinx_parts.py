"""What the book adds to Sphinx: mathematics as MathML, the course's kind of docstrings, and an index entry wherever a
glossary's term is linked.

MathML is drawn by the browser itself, so that no script and no font has to be fetched. In: doctrees. Out: HTML.
"""

from typing import Any

from dltutorial.course import site
from dltutorial.course.book import docstrings


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
    app.connect("autodoc-process-signature", _with_readable_defaults)
    app.connect("doctree-read", _index_terms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _before_napoleon(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    lines[:] = docstrings.ready(lines, what)


def _after_napoleon(app: Any, what: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    lines[:] = docstrings.restored(lines)


def _with_readable_defaults(
    app: Any, what: str, name: str, item: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Sphinx cannot read ``<factory>``, which stands for a default made anew for each object."""
    return (signature.replace("<factory>", "...") if signature else signature), returns


def _inline(writer: Any, node: Any) -> None:
    from docutils import nodes

    writer.body.append(site.mathml(node.astext(), display=False))
    raise nodes.SkipNode


def _display(writer: Any, node: Any) -> None:
    from docutils import nodes

    writer.body.append(f'<div class="math-display">{site.mathml(node.astext(), display=True)}</div>')
    raise nodes.SkipNode


def _index_terms(app: Any, doctree: Any) -> None:
    """``bucket`` in the index leads to the chapters that use the word, not only to its definition."""
    from docutils import nodes
    from sphinx import addnodes

    title = next((node.astext() for node in doctree.findall(nodes.title)), "")
    seen: set[str] = set()
    for number, link in enumerate(list(doctree.findall(addnodes.pending_xref))):
        if link.get("reftype") != "term" or link["reftarget"].lower() in seen or not title:
            continue
        seen.add(link["reftarget"].lower())
        target = f"term-{number}"
        entry = addnodes.index(entries=[("single", f"{link['reftarget']}; {title}", target, "", None)])
        spot = nodes.target("", "", ids=[target])
        place = link.parent.index(link)
        link.parent[place:place] = [entry, spot]
