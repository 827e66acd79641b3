"""The course in JupyterLab and a real browser: a chapter, an explorer, a timeline, and an exercise, wrong and right."""

import json
import re
import runpy
from pathlib import Path

import explorer_examples
import pytest
from notebook_page import ROOT, code_cells, write_notebook
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
CHAPTER = "notebooks/00_welcome.ipynb"
EXERCISE = "exercises/00_welcome.ipynb"
IN_PAGE = "document.querySelector('.jp-Notebook').innerText"


def test_make_lab_opens_the_readme_as_a_page_and_asks_nothing(page, lab):
    page.goto(f"{lab.url}?token={lab.token}")
    page.wait_for_selector(".lm-TabBar-tab >> text=README.md")
    page.locator(".jp-MarkdownViewer table").first.wait_for()
    assert "news" not in page.locator("body").inner_text()


def test_chapter_00_runs_through_and_a_typed_guess_reaches_the_kernel(open_notebook):
    notebook = open_notebook(CHAPTER).run_all()
    cells = code_cells(CHAPTER)
    figures_are_there(notebook.page, sum(cell.count("plots.figure(") for cell in cells))
    claims_hold(notebook.page, sum(len(re.findall(r"^claim\(", cell, re.MULTILINE)) for cell in cells))
    guess_reaches_the_kernel(notebook, cells)


def figures_are_there(page, n_figures):
    assert n_figures > 0
    page.wait_for_function(  # the kernel may be idle before the page has drawn what it sent
        "n => { const all = [...document.querySelectorAll('.jp-OutputArea img')];"
        " return all.length >= n && all.every(picture => picture.naturalWidth > 100) }",
        arg=n_figures,
    )
    assert all(figure.get_attribute("alt") for figure in page.locator(".jp-OutputArea img").all())


def claims_hold(page, n_claims):
    assert n_claims > 0
    claims = page.locator(".dlt-claim")
    claims.nth(n_claims - 1).wait_for()
    labels = {claim.get_attribute("aria-label") for claim in claims.all()}
    assert labels <= {"shown", "not shown here", "different here"}, claims.all_inner_texts()


def guess_reaches_the_kernel(notebook, cells):
    """Type a number into the first field, and run the cell that scores it."""
    names = [name for cell in cells for name in re.findall(r"^(\w+) = predict\(", cell, re.MULTILINE)]
    fields = notebook.page.locator(".jupyter-widgets input[type=number]")
    assert fields.count() == len(names) > 0
    fields.first.fill("0.4321")
    fields.first.press("Tab")
    notebook.page.wait_for_function(f"{IN_PAGE}.includes('guess 0.4321')")
    scoring_cell = next(i for i, cell in enumerate(cells) if re.search(rf"\b{names[0]}\.score\(", cell))
    score = notebook.run(scoring_cell).locator(".dlt-score", has_text="Your guess")
    score.wait_for()
    assert "0.432" in score.inner_text()


def test_an_explorer_follows_the_keyboard_and_says_so_in_words(open_notebook, lab):
    here = str(Path(explorer_examples.__file__).parent)
    source = f"import sys\nsys.path.insert(0, {here!r})\nfrom explorer_examples import examples"
    write_notebook(lab.folder / "explorer.ipynb", [source, 'examples()["pipeline"]'])
    notebook = open_notebook("explorer.ipynb").run_all()
    words = notebook.cell(1).locator(".dlt-explorer > p").first
    before = words.inner_text()
    slider = notebook.cell(1).get_by_role("slider").first
    slider.focus()
    for _ in range(5):
        notebook.page.keyboard.press("ArrowRight")
    expect(words).not_to_have_text(before)
    # A later key may replace the output at any moment, so the description and the words are read from one element.
    both = "output => [output.querySelector('img').alt, output.querySelector('p').innerText]"
    description, text = notebook.cell(1).locator(".dlt-explorer").first.evaluate(both)
    assert description.endswith(text)


TIMELINE = """
from dltutorial.profile.events import Event, Trace
from dltutorial.profile.timeline import Timeline
events = []
for start_s in (0.00, 0.01, 0.02):
    events.append(Event("step", "range", start_s, 0.01, 0))
    events.append(Event("gemm", "kernel", start_s + 0.005, 0.005, 1))
Timeline(Trace.of(events, ("thread 1", "GPU 0 stream 7")))
"""


def test_a_timeline_follows_wheel_and_keys(open_notebook, lab):
    write_notebook(lab.folder / "timeline.ipynb", [TIMELINE.strip()])
    notebook = open_notebook("timeline.ipynb").run_all()
    around = notebook.page.locator("iframe").first
    around.scroll_into_view_if_needed()  # a frame out of sight draws nothing
    frame = around.content_frame
    canvas = frame.locator("canvas[data-ready]")
    whole = view_of(canvas)
    canvas.click(position={"x": 500, "y": 30})
    notebook.page.mouse.wheel(0, -300)
    zoomed = view_after(frame, whole)
    assert float(zoomed[1]) - float(zoomed[0]) < float(whole[1]) - float(whole[0])
    notebook.page.keyboard.press("ArrowRight")
    moved = view_after(frame, zoomed)
    assert float(moved[0]) > float(zoomed[0])
    notebook.page.keyboard.press("0")
    assert view_after(frame, moved) == whole


def view_of(canvas):
    """First and last second in view, as text."""
    return canvas.get_attribute("data-from"), canvas.get_attribute("data-to")


def view_after(frame, before):
    """What is in view as soon as that is something else."""
    other = frame.locator(f'canvas:not([data-from="{before[0]}"][data-to="{before[1]}"])')
    other.wait_for()
    return view_of(other)


def test_an_exercise_is_not_attempted_then_wrong_with_a_hint_then_right(open_notebook, lab):
    blank = code_cells(EXERCISE)
    answer_cell = next(number for number, cell in enumerate(blank) if "NotImplementedError" in cell)
    check_cell = next(number for number, cell in enumerate(blank) if "check." in cell)
    right = code_cells(EXERCISE.replace("exercises", "solutions"))[answer_cell]
    _, wrong, hint = runpy.run_path(str(ROOT / "tests/exercises/wrong/layer_time_s.py"))["WRONG"][0]

    notebook = open_notebook(EXERCISE).run_all()
    expect(notebook.output(check_cell).locator('[aria-label="not attempted"]')).to_be_visible()

    notebook.write(answer_cell, wrong)
    notebook.run(answer_cell)
    failed = notebook.run(check_cell).locator(".dlt-check")
    expect(failed).to_contain_text("1 of 6 cases failed")
    first, second = failed.locator("details").all()[:2]
    assert first.get_attribute("open") is not None
    assert hint in first.inner_text()
    second.locator("summary").click()
    assert second.get_attribute("open") is not None

    notebook.write(answer_cell, right)
    notebook.run(answer_cell)
    passed = notebook.run(check_cell).locator('.dlt-claim[aria-label="shown"]')
    expect(passed).to_contain_text("all 6 cases pass")

    notebook.focus(answer_cell)
    with notebook.page.expect_response(lambda r: r.request.method == "PUT" and "/api/contents/" in r.url):
        notebook.page.keyboard.press("Control+S")
    sources = ["".join(cell["source"]) for cell in json.loads((lab.folder / EXERCISE).read_text())["cells"]]
    assert right in sources
