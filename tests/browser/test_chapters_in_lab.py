"""Chapters by Run All in JupyterLab, in a real browser: they run through, their figures show, what moves is alive.

All chapters run by papermill in other tests. Here run two short ones, and the profiling chapter down to its timeline;
with DLTUTORIAL_BROWSER=all every chapter runs, every timeline moves, and every exercise runs, unsolved.
"""

import os
import re
from pathlib import Path

import pytest
from notebook_page import ROOT, RUN_S, code_cells, write_notebook

EVERY = os.environ.get("DLTUTORIAL_BROWSER") == "all"
IN_PAGE = "document.querySelector('.jp-Notebook').innerText"


pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]
# Two workers share the browser tests: the long chapters, one of which may run again, are one's, the rest the other's.
HERE, THERE = pytest.mark.xdist_group("chapters"), pytest.mark.xdist_group("browser")
LONG = ("notebooks/06",)


def chosen(folder, chapters):
    """Paths of these chapters' notebooks, or of all that there are, each with its group."""
    paths = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.ipynb"))
    return [
        pytest.param(path, marks=HERE if path.startswith(LONG) else THERE)
        for path in paths
        if EVERY or Path(path).name[:2] in chapters
    ]


@THERE
@pytest.mark.parametrize("cells", [("1 / 0", "1"), ("1", "1 / 0")])
def test_a_cell_that_fails_is_noticed_at_once(open_notebook, lab, cells):
    write_notebook(lab.folder / "fails.ipynb", cells)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        open_notebook("fails.ipynb").run_all()


@pytest.mark.parametrize("path", chosen("notebooks", ("00", "06")))
def test_chapter_runs_and_what_moves_in_it_is_alive(open_notebook, path):
    notebook = open_notebook(path).run_all()
    notebook.keep_picture(path.replace("/", "_").removesuffix(".ipynb"))
    cells = code_cells(path)
    figures_are_there(notebook.page, sum(cell.count("plots.figure(") for cell in cells))
    claims_hold(notebook.page, sum(len(re.findall(r"^claim\(", cell, re.MULTILINE)) for cell in cells))
    if "00_" in path:  # the field is the same everywhere; later cells that score take long to run again
        guess_reaches_the_kernel(notebook, cells)


def figures_are_there(page, wanted):
    assert wanted > 0
    page.wait_for_function(  # the kernel may be idle before the page has drawn what it sent
        "n => { const all = [...document.querySelectorAll('.jp-OutputArea img')];"
        " return all.length >= n && all.every(picture => picture.naturalWidth > 100) }",
        arg=wanted,
    )
    assert all(figure.get_attribute("alt") for figure in page.locator(".jp-OutputArea img").all())


def claims_hold(page, wanted):
    assert wanted > 0
    claims = page.locator(".dlt-claim")
    claims.nth(wanted - 1).wait_for()
    labels = [claim.get_attribute("aria-label") for claim in claims.all()]
    assert set(labels) <= {"shown", "not shown here", "otherwise on this machine"}, claims.all_inner_texts()


def guess_reaches_the_kernel(notebook, cells):
    """Type a number, see it come back from the kernel; run the cell that scores it, see whose guess it is."""
    asked = [name for cell in cells for name in re.findall(r"^(\w+) = predict\(", cell, re.MULTILINE)]
    fields = notebook.page.locator(".jupyter-widgets input[type=number]")
    assert fields.count() == len(asked) > 0
    fields.first.fill("0.4321")
    fields.first.press("Tab")
    notebook.page.wait_for_function(f"{IN_PAGE}.includes('guess 0.4321')")
    scored_in = next(i for i, cell in enumerate(cells) if re.search(rf"\b{asked[0]}\.score\(", cell))
    assert "The default guess" in notebook.output(scored_in).locator(".dlt-score").inner_text()
    mine = notebook.run(scored_in).locator(".dlt-score", has_text="Your guess")
    mine.wait_for(timeout=1000 * RUN_S)  # the cell may measure anew
    assert "0.432" in mine.inner_text()


def with_timeline(path):
    """The number of the first code cell that shows one, if any does."""
    return next((number for number, cell in enumerate(code_cells(path)) if "Timeline(" in cell), None)


@pytest.mark.parametrize("path", [p for p in chosen("notebooks", ("02",)) if with_timeline(*p.values) is not None])
def test_a_timeline_follows_wheel_and_keys(open_notebook, path):
    """In its frame, as JupyterLab shows it: what is in view follows."""
    notebook = open_notebook(path).run_down_to(with_timeline(path))
    around = notebook.page.locator("iframe").first  # what is scrolled: a frame out of sight draws nothing
    around.scroll_into_view_if_needed()
    frame = around.content_frame
    canvas = frame.locator("canvas[data-ready]")
    whole = view_of(canvas)
    canvas.click(position={"x": 500, "y": 30})
    notebook.page.mouse.wheel(0, -300)
    zoomed = changed(frame, whole)
    assert float(zoomed[1]) - float(zoomed[0]) < float(whole[1]) - float(whole[0])
    notebook.page.keyboard.press("ArrowRight")
    moved = changed(frame, zoomed)
    assert float(moved[0]) > float(zoomed[0])
    notebook.keep_picture(f"timeline_{Path(notebook.path).stem[:2]}")
    around.scroll_into_view_if_needed()
    canvas.focus()
    notebook.page.keyboard.press("0")
    assert changed(frame, moved) == whole


def view_of(canvas):
    """First and last second in view, as text."""
    return canvas.get_attribute("data-from"), canvas.get_attribute("data-to")


def changed(frame, before):
    """What is in view as soon as that is something else."""
    other = frame.locator(f'canvas:not([data-from="{before[0]}"][data-to="{before[1]}"])')
    other.wait_for()
    return view_of(other)


@pytest.mark.parametrize("path", chosen("exercises", ("08",)))
def test_exercise_runs_through_unsolved_and_says_so(open_notebook, path):
    notebook = open_notebook(path).run_all()
    notebook.keep_picture(path.replace("/", "_").removesuffix(".ipynb"))
    notebook.page.wait_for_function(f"{IN_PAGE}.includes('not attempted yet')")
    assert notebook.page.locator('.dlt-claim[aria-label="failed"]').count() == 0
