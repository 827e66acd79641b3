"""An exercise as a learner solves it in JupyterLab: not attempted, wrong, hints, right, saved, still there."""

import json
import runpy
import shutil

import pytest
from notebook_page import ROOT, code_cells
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]

NAME = "00_welcome.ipynb"
BLANK = code_cells(f"exercises/{NAME}")
ANSWER = next(number for number, cell in enumerate(BLANK) if "NotImplementedError" in cell)
CHECK = next(number for number, cell in enumerate(BLANK) if "check." in cell)
RIGHT = code_cells(f"solutions/{NAME}")[ANSWER]
WRONG = runpy.run_path(str(ROOT / "tests/exercises/wrong/layer_time_s.py"))["WRONG"]


def test_not_attempted_then_wrong_with_hints_then_right_then_still_there(open_notebook, lab):
    shutil.copy(lab.folder / "exercises" / NAME, lab.folder / "exercises" / "mine.ipynb")
    notebook = open_notebook("exercises/mine.ipynb").run_all()
    expect(notebook.output(CHECK).locator('[aria-label="not attempted"]')).to_be_visible()

    hints = [attempt(notebook, number) for number in range(3)]
    assert hints == [2, 5, 6], "one more each time, beside the known mistake; from the second on code, too"
    notebook.keep_picture("exercise_wrong")

    notebook.write(ANSWER, RIGHT)
    notebook.run(ANSWER)
    passed = notebook.run(CHECK).locator('.dlt-claim[aria-label="shown"]')
    expect(passed).to_contain_text("✓ layer_time_s: all 6 cases pass")
    notebook.keep_picture("exercise_right")
    saved_and_still_there(notebook)


def attempt(notebook, number):
    """Type a wrong answer, check it, unfold the hints; returns how many there are."""
    label, source, hint = WRONG[number]
    head, body = source.split("\n", 1)
    notebook.write(ANSWER, f"{head}\n{body.rstrip()}", typed=True)
    assert notebook.source(ANSWER).strip() == source.strip(), label
    notebook.run(ANSWER)
    failed = notebook.run(CHECK).locator(".dlt-check")
    told = failed.inner_text()
    assert "1 failed" in told
    assert "expected" in told
    assert "got" in told
    folds = failed.locator("details")
    first, *others = folds.all()
    assert first.get_attribute("open") is not None
    assert hint in first.inner_text()
    for other in others:
        assert other.get_attribute("open") is None
        other.locator("summary").click()
        assert other.get_attribute("open") is not None
    return folds.count()


def saved_and_still_there(notebook):
    """Ctrl+S writes the file; the page, loaded anew, shows the answer and that it passed."""
    file = notebook.lab.folder / notebook.path
    notebook.focus(ANSWER)
    with notebook.page.expect_response(lambda answer: answer.request.method == "PUT" and "mine.ipynb" in answer.url):
        notebook.page.keyboard.press("Control+S")
    notebook.page.wait_for_selector(".lm-TabBar-tab:not(.jp-mod-dirty) >> text=mine.ipynb")
    sources = ["".join(cell["source"]) for cell in json.loads(file.read_text())["cells"]]
    assert RIGHT in sources
    notebook.page.reload()
    notebook.wait_until_open()
    expect(notebook.cell(ANSWER)).to_contain_text("return max(")
    expect(notebook.output(CHECK)).to_contain_text("all 6 cases pass")
    assert (notebook.lab.folder / "exercises" / NAME).read_text() == (ROOT / "exercises" / NAME).read_text()
