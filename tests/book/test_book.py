"""The book: what is printed and what is not, a small one built as a whole, and how it reads in a browser."""

import ast
import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dltutorial import paths
from dltutorial.cli import main
from dltutorial.course.book import build, chapters, docstrings, links, reference, solved, sources, terms
from dltutorial.errors import CourseError

ROOT = Path(__file__).parents[2]
PICTURE = '<img class="dlt-figure" src="data:image/png;base64,iVBORw0KGgo=" alt="It rises to 3">'


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


@pytest.fixture
def pair(tmp_path):
    """A notebook of today, and the folder of its executed copy."""
    cells = [cell("markdown", "# Rise"), cell("code", "x = 1")]
    save(tmp_path / "run" / "00_rise.ipynb", *cells)
    return save(tmp_path / "notebooks" / "00_rise.ipynb", *cells), tmp_path / "run"


# What is printed


def test_an_executed_copy_of_todays_notebook_is_printed(pair):
    source, run = pair
    assert chapters.choose([source], [run]) == [
        chapters.Printed(source, run / source.name, "Executed on a machine that its folder does not name.")
    ]


@pytest.mark.parametrize(
    ("then", "why"),
    [
        (None, "not executed"),
        ([cell("markdown", "# Rise"), cell("code", "x = 2")], "executed before cell 2 was changed"),
        ([cell("markdown", "# Rise")], "executed before cells were added or removed"),
        ([cell("markdown", "# Rise"), cell("code", "x = 1", execution_count=None)], "cell 2 was not executed"),
        (
            [
                cell("markdown", "# Rise"),
                cell("code", "x = 1", outputs=[{"output_type": "error", "ename": "ValueError", "evalue": "no\nway"}]),
            ],
            "cell 2 failed: ValueError: no",
        ),
        ("{", "its executed copy cannot be read"),
    ],
)
def test_a_copy_that_misleads_is_refused_in_one_line_that_says_what_to_run(pair, then, why):
    source, run = pair
    (run / source.name).unlink()
    if isinstance(then, list):
        save(run / source.name, *then)
    elif then:
        (run / source.name).write_text(then)
    with pytest.raises(CourseError) as told:
        chapters.choose([source], [run])
    assert str(told.value) == f"00_rise.ipynb: {why}; run: dltutorial run, or give --partial"
    (printed,) = chapters.choose([source], [run], partial=True)
    assert "**Not executed.**" in chapters.notebook(printed)["cells"][0]["source"]


def test_the_newest_run_that_fits_is_taken(pair):
    source, run = pair
    save(run.parent / "newer" / source.name, cell("markdown", "# Rise"), cell("code", "x = 7"))
    (printed,) = chapters.choose([source], [run.parent / "newer", run])
    assert printed.executed == run / source.name


def test_with_run_the_course_runs_first_where_its_runs_do_not_suffice(pair, monkeypatch, capsys):
    source, run = pair
    monkeypatch.setattr(build.notebooks, "chapters", lambda: [source])

    def run_course():
        (run / "run.json").write_text("{}")
        shutil.copytree(run, paths.runs_dir() / "now")
        return 0

    monkeypatch.setattr(build.notebooks, "run", run_course)
    with pytest.raises(CourseError, match="not executed; run: dltutorial run"):
        build._chosen(None, partial=False, run=False)
    (printed,) = build._chosen(None, partial=False, run=True)
    assert printed.executed == paths.runs_dir().absolute() / "now" / source.name
    assert capsys.readouterr().err == "00_rise.ipynb: not executed: running the course first\n"


def test_papermills_cell_widgets_and_places_of_the_machine_are_left_out(pair):
    source, run = pair
    place = "/" + "home/lovelace/runs/7/weights.pt"
    outputs = [
        shown(f"<p>in {place}</p>{PICTURE}"),
        {"output_type": "stream", "name": "stdout", "text": [f"{place}\n"]},
        {"output_type": "display_data", "metadata": {}, "data": {"application/vnd.jupyter.widget-view+json": {}}},
    ]
    added = cell("code", "preset = 'smoke'", metadata={"tags": ["injected-parameters"]})
    save(run / source.name, cell("markdown", "# Rise"), added, cell("code", "x = 1", outputs=outputs))
    (printed,) = chapters.choose([source], [run])
    made = chapters.notebook(printed)
    text = json.dumps(made, ensure_ascii=False)
    assert len(made["cells"]) == 2
    assert len(made["cells"][1]["outputs"]) == 2
    assert "lovelace" not in text
    assert text.count("…/weights.pt") == 2
    assert "iVBORw0KGgo=" in text


def test_the_command_says_in_one_line_what_is_missing(capsys, tmp_path, monkeypatch):
    assert main(["book", "--executed", str(tmp_path / "no")]) == 2
    assert main(["book"]) == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert main(["book", "--out", str(tmp_path / "mine")]) == 2
    monkeypatch.setattr(build, "_NEEDED", ("sphinx", "no_such_package"))
    assert main(["book"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "no folder" in lines[0]
    assert "00_welcome.ipynb: not executed; 15 more" in lines[1]
    assert "holds something that is not a book" in lines[2]
    assert lines[3] == "dltutorial: the book needs no_such_package; run: pip install -e .[book]"


def test_an_exercise_has_its_solution_behind_a_fold():
    made = solved.notebook(ROOT / "solutions" / "08_collectives.ipynb")
    (fold,) = [c for c in made["cells"] if "hide-input" in c["metadata"].get("tags", ())]
    before = made["cells"][made["cells"].index(fold) - 1]
    assert "YOUR CODE HERE" in "".join(before["source"])
    assert "tensor_split" in fold["source"]
    assert "SOLUTION" not in fold["source"]


def test_every_exercise_has_at_least_one_solution_and_it_can_be_read_by_python():
    for file in (ROOT / "solutions").glob("*.ipynb"):
        folds = [c for c in solved.notebook(file)["cells"] if "hide-input" in c["metadata"].get("tags", ())]
        assert folds, file.name
        for fold in folds:
            ast.parse(fold["source"])
            assert "# HINT" not in fold["source"]


# Terms, docstrings, reference


def test_the_first_use_of_a_term_leads_to_the_glossary_but_not_in_code_or_links():
    words = terms.defined("# G\n\n```{glossary}\nrank\n  One.\n\nall-reduce\n  Two.\n```\n")
    assert words == ["rank", "all-reduce"]
    cells = [
        cell("markdown", "# Rank\nSee [a rank](x.ipynb), `rank`: Ranks all-reduce, ranks wait."),
        cell("code", "rank"),
    ]
    terms.link(cells, words)
    text = "# Rank\nSee [a rank](x.ipynb), `rank`: {term}`Ranks <rank>` {term}`all-reduce <all-reduce>`, ranks wait."
    assert [c["source"] for c in cells] == [text, "rank"]


def test_tables_blocks_and_bars_of_docstrings_are_marked_up():
    lines = ["Norms ``|x|`` and |g|.", "", "    a   b", "", "| a | b |", "|---|---|", "| 1 | 2 |"]
    made = docstrings.ready(lines, "module")
    assert made[0] == r"Norms ``|x|`` and \|g\|."
    assert made[2:5] == [".. code-block:: text", "", "    a   b"]
    assert [line.strip() for line in made if "*" in line or "- 2" in line] == ["* - a", "* - 1", "- 2"]
    kept = docstrings.ready(["Seconds: of a step."], "property")
    assert ":" not in kept[0]
    assert docstrings.restored(kept) == ["Seconds: of a step."]


def test_the_reference_lists_every_public_module_once_in_the_order_of_the_layers():
    package = ROOT / "dltutorial"
    files = [file.relative_to(ROOT).with_suffix("") for file in package.rglob("*.py")]
    names = {".".join(file.parts).removesuffix(".__init__") for file in files} - {"dltutorial", "dltutorial.__main__"}
    listed = reference.modules()
    assert set(listed) == {name for name in names if "._" not in name}
    assert len(set(listed)) == len(listed)
    order = [listed.index(f"dltutorial.{name}") for name in ("errors", "observe.timing", "training.loop", "cli")]
    assert order == sorted(order)
    text = "\n".join(reference.pages().values())
    assert all(f".. automodule:: {name}\n" in text for name in listed)


def sphinx(source, target, builder):
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "-b", builder]
    done = subprocess.run(
        [*command, "-d", str(target / "read"), str(source), str(target)], capture_output=True, text=True
    )
    return done.returncode, done.stderr


@pytest.mark.timeout(900)
def test_every_docstring_of_the_library_is_read_without_a_warning(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "book", source)
    (source / "index.md").write_text("# Book\n\n```{toctree}\nreference/index\n```\n")
    (source / "glossary.md").unlink(missing_ok=True)
    (source / "reference").mkdir()
    for name, text in reference.pages().items():
        (source / "reference" / name).write_text(text)
    assert sphinx(source, tmp_path / "out", "dummy") == (0, "")


# The links


def test_dead_links_anchors_pictures_without_words_and_requests_outside_are_found(tmp_path):
    good = '<a href="b.html#there">b</a><a href="https://example.org/a">out</a><img src="p.png" alt="p">'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text('<p id="there">')
    (tmp_path / "p.png").write_bytes(b"")
    assert links.problems(tmp_path) == []
    assert list(links.outside(tmp_path)) == ["https://example.org/a"]
    bad = (
        '<a href="c.html"></a><a href="b.html#gone"></a><a href="https://nowhere"></a><a href="javascript:x"></a>'
        '<img src="p.png"><script src="https://cdn.example.org/x.js"></script><img src="q.png" alt="q">'
    )
    (tmp_path / "a.html").write_text(bad)
    (tmp_path / "s.css").write_text("@import url('https://fonts.example.org/f.css');")
    text = "\n".join(links.problems(tmp_path))
    for part in ("'c.html': no such file", "no such anchor", "'https://nowhere': not an address", "javascript"):
        assert part in text
    for part in ("no description of p.png", "asks https://cdn.example.org", "'q.png': no such file", "asks https://f"):
        assert part in text


# A small book, whole


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of two chapters, executed, beside the book's own files; its reference has one module."""
    root = tmp_path_factory.mktemp("course")
    shutil.copytree(ROOT / "book", root / "book")
    (root / "pyproject.toml").write_text("")
    words = "# Glossary\n\n```{glossary}\npreset\n  Sizes: [chapter 00](notebooks/00_rise.ipynb).\n```\n"
    (root / "book" / "glossary.md").write_text(words)
    (root / "README.md").write_text(
        "# Read me\n\n## Chapters\n[Rise](notebooks/00_rise.ipynb)\n\nEach has an exercise\n"
    )
    (root / "CHANGELOG.md").write_text("# Changes\n\nSee [the licence](LICENSE) and [the book](book/).\n")
    (root / "LICENSE").write_text("free")
    wide = "<table><tr>" + "<td>a wide and undivided_word_of_forty_letters_or_so</td>" * 6 + "</tr></table>"
    rise = [
        cell("markdown", "# Rise\n\nThe zephyrometer has one preset: $x^2$\n\n$$\\frac{a}{b} + " + "c + " * 30 + "d$$"),
        cell("markdown", "Go on with [the fall](01_fall.ipynb#deeper), or [try](../exercises/00_rise.ipynb)."),
        cell("code", "x = " + "1 + " * 60 + "1", outputs=[shown(PICTURE), shown(wide)]),
    ]
    fall = [cell("markdown", "# Fall\n\nBack to [rise](00_rise.ipynb)."), cell("markdown", "## Deeper\nDown.")]
    for name, cells in {"00_rise": rise, "01_fall": fall}.items():
        save(root / "run" / f"{name}.ipynb", *cells)
        save(root / "notebooks" / f"{name}.ipynb", *cells)
    blank = "def f():\n    ### BEGIN SOLUTION\n    return 'unfolded'\n    ### END SOLUTION"
    save(root / "solutions" / "00_rise.ipynb", cell("markdown", "# Exercise 00: rise"), cell("code", blank))
    about = {"machine": "a CPU, 2 cores", "preset": "smoke", "versions": {"torch": "2.6"}}
    (root / "run" / "run.json").write_text(json.dumps(about))
    (root / "run" / "records.jsonl").write_text('{"time": "2026-11-21T21:30:00Z"}\n')
    return root


@pytest.fixture(scope="module")
def site(course):
    """Its pages, made as the command makes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(course)
        few = {"index.rst": "Library\n=======\n\n.. automodule:: dltutorial.profile.timing\n"}
        patch.setattr(sources.reference, "pages", lambda: few)
        return build.build(executed=course / "run").parent


def test_the_book_has_its_chapters_exercises_reference_glossary_and_index(site, course):
    assert site == course / "build" / "book" / "html"
    rise = (site / "notebooks" / "00_rise.html").read_text()
    for part in (
        "00 · Rise",
        "torch 2.6, 2026-11-21.",
        'alt="It rises to 3"',
        "<math",
        'href="01_fall.html#deeper"',
    ):
        assert part in rise
    assert "unfolded" in (site / "exercises" / "00_rise.html").read_text()
    index = (site / "genindex.html").read_text()
    assert "median_s" in index
    assert "00 · Rise" in index, "the chapter uses a term of the glossary"
    assert (site / "addresses.txt").is_file()
    assert links.problems(site) == []
    assert {path.name for path in site.parent.iterdir()} == {"html"}, "nothing else is left"


def test_a_dead_link_in_a_chapter_stops_the_book_and_keeps_the_old_one(site, course, monkeypatch, capfd):
    before = (site / "index.html").read_bytes()
    monkeypatch.chdir(course)
    monkeypatch.setattr(sources.reference, "pages", lambda: {"index.rst": "Library\n=======\n"})
    for folder in ("run", "notebooks"):
        save(course / folder / "02_lost.ipynb", cell("markdown", "# Lost\n\n[nowhere](03_none.ipynb)"))
    try:
        with pytest.raises(CourseError, match=r"Sphinx could not make the book: .*02_lost.*03_none"):
            build.build(executed=course / "run")
    finally:
        for folder in ("run", "notebooks"):
            (course / folder / "02_lost.ipynb").unlink()
    assert (site / "index.html").read_bytes() == before
    capfd.readouterr()


# In a browser


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def window(browser, width, address):
    """A window of that width; a request to another place, or an error in a script, fails the test."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda asked: None if asked.url.startswith((address, "data:")) else wrong.append(asked.url))
    yield page
    page.close()
    assert not wrong


@contextlib.contextmanager
def served(folder):
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def search(page, address, word):
    page.goto(f"{address}/index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type(word)
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    return page.locator("#search-results li a").all_inner_texts()


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_search_finds_a_word_from_the_disk_and_from_a_server_and_asks_nobody_else(site, browser):
    with window(browser, 1200, "file:") as page:
        assert "00 · Rise" in search(page, site.as_uri(), "zephyrometer")
    with served(site) as address, window(browser, 1200, address) as page:
        assert "00 · Rise" in search(page, address, "zephyrometer")


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_on_a_phone_no_page_is_wider_than_the_screen(site, browser):
    with window(browser, 390, "file:") as page:
        for file in sorted(site.rglob("*.html")):
            if "_static" not in file.parts:
                page.goto(file.as_uri())
                assert page.evaluate("document.documentElement.scrollWidth") <= 390, file.name


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_on_paper_folds_are_open_and_navigation_is_away(site, browser):
    with window(browser, 1200, "file:") as page:
        page.goto((site / "exercises" / "00_rise.html").as_uri())
        assert not page.get_by_text("unfolded").is_visible()
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.get_by_text("unfolded").is_visible()
        assert not page.locator(".bd-sidebar-primary").is_visible()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert not page.get_by_text("unfolded").is_visible()
