"""The book: which run of a chapter is printed, what Sphinx reads, the whole site, and how it reads in a browser."""

import ast
import contextlib
import json
import os
import shutil
import subprocess
import sys

import links
import pytest
from folders import ARTIFACTS, ROOT, skip_unless_required

from dltutorial.course import notebooks

pytestmark = pytest.mark.timeout(900)  # the whole site, also on a busy machine

PICTURE = '<img class="dlt-figure" src="data:image/png;base64,iVBORw0KGgo=" alt="It rises to 3">'


@pytest.fixture(scope="module")
def reading():
    """The book's own extension of Sphinx."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "book"))
        import reading

        yield reading


def cell(kind, source, **more):
    extra = {"outputs": [], "execution_count": 1} if kind == "code" else {}
    return {"cell_type": kind, "id": f"c{abs(hash(source)) % 10**8}", "metadata": {}, "source": source, **extra, **more}


def shown(html):
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": html, "text/plain": "…"}}


def save(file, *cells):
    file.parent.mkdir(parents=True, exist_ok=True)
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    text = {"cells": list(cells), "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    file.write_text(json.dumps(text))
    return file


def about(run, status="finished"):
    """Write what a run says of itself."""
    row = {"notebook": "00_rise.ipynb", "status": status}
    summary = {"machine": "a CPU, 2 cores", "preset": "smoke", "versions": {"torch": "2.6"}, "chapters": [row]}
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps(summary))


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """A notebook of today, and the folder of its executed copy."""
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path / "runs"))
    cells = [cell("markdown", "# Rise"), cell("code", "x = 1")]
    about(tmp_path / "runs" / "now")
    save(tmp_path / "runs" / "now" / "00_rise.ipynb", *cells)
    return save(tmp_path / "notebooks" / "00_rise.ipynb", *cells), tmp_path / "runs" / "now"


# What is printed


def test_an_executed_copy_of_todays_notebook_is_printed_and_says_where_it_ran(reading, pair):
    source, run = pair
    assert reading.run_of(source) == run
    first = reading.chapter(source)["cells"][0]["source"]
    assert first.startswith("# 00 · Rise")
    assert "Executed on a CPU, 2 cores, preset `smoke`, torch 2.6." in first


@pytest.mark.parametrize("then", [None, [cell("markdown", "# Rise"), cell("code", "x = 2")]])
def test_a_chapter_that_was_not_executed_as_it_is_today_says_so(reading, pair, then):
    source, run = pair
    (run / source.name).unlink()
    if then:
        save(run / source.name, *then)
    else:
        about(run, status="not run")
    assert reading.run_of(source) is None
    assert "**Not executed.**" in reading.chapter(source, partial=True)["cells"][0]["source"]


def test_papermills_cell_widgets_and_places_of_the_machine_are_left_out(reading, pair):
    source, run = pair
    place = "/" + "home/lovelace/runs/7/weights.pt"
    outputs = [
        shown(f"<p>in {place}</p>{PICTURE}"),
        {"output_type": "stream", "name": "stdout", "text": [f"{place}\n"]},
        {"output_type": "display_data", "metadata": {}, "data": {"application/vnd.jupyter.widget-view+json": {}}},
    ]
    added = cell("code", "preset = 'smoke'", metadata={"tags": ["injected-parameters"]})
    save(run / source.name, cell("markdown", "# Rise"), added, cell("code", "x = 1", outputs=outputs))
    made = reading.chapter(source)
    text = json.dumps(made, ensure_ascii=False)
    assert len(made["cells"]) == 2
    assert len(made["cells"][1]["outputs"]) == 2
    assert "lovelace" not in text
    assert text.count("…/weights.pt") == 2
    assert "iVBORw0KGgo=" in text


def test_every_exercise_has_its_solution_behind_a_fold_and_python_can_read_it(reading):
    for file in notebooks.chapters(ROOT / "solutions"):
        cells = reading.with_solutions(file)["cells"]
        folded = [c for c in cells if "hide-input" in c["metadata"].get("tags", ())]
        folds = [c for c in folded if isinstance(c["source"], str)]  # the notebook's own cells have lists of lines
        assert folds, file.name
        for fold in folds:
            magic, _, text = fold["source"].partition("\n")
            if not magic.endswith(".sbatch"):
                ast.parse(text if magic.startswith("%%writefile") else fold["source"])
            assert "# HINT" not in fold["source"] and "SOLUTION" not in fold["source"]
            assert "YOUR CODE HERE" in "".join(cells[cells.index(fold) - 1]["source"])


def test_the_first_use_of_a_term_leads_to_the_glossary_but_not_in_code_or_links(reading):
    cells = [
        cell("markdown", "# Rank\nSee [a rank](x.ipynb), `rank`: Ranks all-reduce, ranks wait."),
        cell("code", "rank"),
    ]
    reading.link_terms(cells)
    text = "# Rank\nSee [a rank](x.ipynb), `rank`: {term}`Ranks <rank>` {term}`all-reduce <all-reduce>`, ranks wait."
    assert [c["source"] for c in cells] == [text, "rank"]


def test_blocks_and_pairs_of_attributes_in_docstrings_are_marked_up(reading):
    lines = ["Norms.", "", "    a   b", "", "    c   d", "", "End."]
    reading.mark_up_docstring(None, "module", "", None, None, lines)
    assert lines == ["Norms.", "", ".. code-block:: text", "", "    a   b", "", "    c   d", "", "End."]
    lines = ["Attributes:", "    x, y: position", "    z: height, width"]
    reading.mark_up_docstring(None, "class", "", None, None, lines)
    assert lines == ["Attributes:", "    x,y: position", "    z: height, width"]


# The whole site, of the chapters that ``make test`` and ``.ci/run`` have executed


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, made as ``make book`` makes them. A warning fails."""
    runs = ARTIFACTS / "chapters"
    if not all((runs / part / "run.json").is_file() for part in ("first", "rest")):
        skip_unless_required("chapters", "the chapters were not executed: make test and make test-ci execute them")
    out = tmp_path_factory.mktemp("book") / "html"
    env = os.environ | {"DLTUTORIAL_RUNS": str(runs), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    options = ["-q", "-E", "-n", "-W", "-j", "2", "-c", "book", "-d", str(out.with_name("read"))]
    command = [sys.executable, "-m", "sphinx", *options, ".", str(out)]
    reference = ROOT / "book" / "reference"
    shutil.rmtree(reference, ignore_errors=True)  # an earlier version may have had other modules
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    shutil.rmtree(reference, ignore_errors=True)
    assert (done.returncode, done.stderr) == (0, "")
    return out


def test_the_book_has_its_chapters_exercises_reference_glossary_and_index(site):
    welcome = (site / "notebooks" / "00_welcome.html").read_text()
    for part in ("00 · ", "preset <code", 'href="../exercises/00_welcome.html"', "glossary.html#", "<math"):
        assert part in welcome
    assert "Show a solution" in (site / "exercises" / "08_collectives.html").read_text()
    assert "median_s" in (site / "genindex.html").read_text()
    assert "A100" in (site / "book" / "published.html").read_text()
    assert 'url=book/index.html"' in (site / "index.html").read_text()
    for page in sorted((site / "notebooks").glob("*.html")):
        assert "Not executed" not in page.read_text(), page.name
    assert links.problems(site) == []


# In a browser


@contextlib.contextmanager
def window(browser, width):
    """Open a window of this width. A request to another host, or an error in a script, fails the test."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_default_timeout(150_000)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else wrong.append(asked.url))
    yield page
    page.close()
    assert not wrong


@pytest.mark.browser
def test_on_a_phone_no_page_is_wider_than_the_screen(site, browser):
    with window(browser, 390) as page:
        some = ("notebooks/00*", "exercises/08*", "book/*", "book/reference/*.profile.t*", "genindex*", "README*")
        for file in (file for pattern in some for file in sorted(site.glob(f"{pattern}.html"))):
            page.goto(file.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, file.name


@pytest.mark.browser
def test_on_paper_folds_are_open_and_navigation_is_away(site, browser):
    with window(browser, 1200) as page:
        page.goto((site / "exercises" / "00_welcome.html").as_uri())
        assert not page.get_by_text("return max(").first.is_visible()
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.get_by_text("return max(").first.is_visible()
        assert not page.locator(".bd-sidebar-primary").is_visible()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert not page.get_by_text("return max(").first.is_visible()
