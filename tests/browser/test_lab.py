"""Notebooks by Run All in JupyterLab, in a real browser: they run through, their figures show, their widgets live.

All chapters run by papermill in other tests. Here run those with something that only a browser shows, at least the
first of each part, and an exercise of each part; with DLTUTORIAL_BROWSER=all every one.
"""

import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "artifacts" / "browser"


def chosen(folder, chapters):
    """Paths of these chapters' notebooks, or of all that there are."""
    every = os.environ.get("DLTUTORIAL_BROWSER") == "all"
    paths = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.ipynb"))
    return [path for path in paths if every or Path(path).name[:2] in chapters]


NOTEBOOKS = chosen("notebooks", ("00", "01", "02", "08", "10", "12"))
EXERCISES = chosen("exercises", ("00", "02", "08", "12"))
IDLE = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(prompt => prompt.textContent)"
SAID_ON_STDERR = '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]'  # errors are shown there, too
RUN_S = 400

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(1500)]


def code_cells(path):
    notebook = json.loads((ROOT / path).read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def page(browser, lab):
    """A window; anything it asks of another machine fails the test."""
    window = browser.new_page(viewport={"width": 1300, "height": 900})
    window.set_default_timeout(150_000)
    elsewhere = []
    window.on("request", lambda request: elsewhere.append(request.url) if is_elsewhere(request.url, lab) else None)
    yield window
    window.close()
    end_kernels(lab)
    assert not elsewhere


def is_elsewhere(url, lab):
    return not url.startswith((lab.url, lab.url.replace("http", "ws", 1), "data:", "blob:"))


def run_all(page, lab, path):
    """Open a notebook, Run All Cells, and wait until none waits to run; all have run, unless one has failed."""
    page.goto(f"{lab.url}lab/tree/{path}?token={lab.token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    wait_for_kernel(page, lab, path)
    page.click(".lm-MenuBar-item >> text=Run")
    page.click('.lm-Menu-item >> text="Run All Cells"')
    page.wait_for_function(
        f"/\\d/.test({PROMPTS}[0]) && {PROMPTS}.every(prompt => !prompt.includes('*'))", timeout=1000 * RUN_S
    )
    page.wait_for_selector(IDLE)
    prompts = page.evaluate(PROMPTS)
    has_run = [bool(re.search(r"\d", prompt)) for prompt in prompts]
    said = page.locator(SAID_ON_STDERR).all_inner_texts()
    assert all(has_run), said  # a cell that fails keeps the next from running
    assert not [text for text in said if "Traceback" in text]  # the last cell has no next
    assert len(prompts) == len(code_cells(path))


@pytest.mark.parametrize("cells", [("1 / 0", "1"), ("1", "1 / 0")])
def test_a_cell_that_fails_is_noticed_at_once(page, lab, cells):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, lab.folder / "fails.ipynb")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_all(page, lab, "fails.ipynb")


def ask_server(lab, what, method="GET"):
    request = urllib.request.Request(
        f"{lab.url}api/{what}", headers={"Authorization": f"token {lab.token}"}, method=method
    )
    return urllib.request.urlopen(request, timeout=100).read()


def end_kernels(lab):
    """A kernel lives on when its page is closed, with all its memory."""
    for session in json.loads(ask_server(lab, "sessions")):
        ask_server(lab, f"sessions/{session['id']}", "DELETE")


def wait_for_kernel(page, lab, path, seconds=200):
    """Run All without a kernel asks which one to use; the page says "idle" before there is one, the server knows."""
    for _ in range(10 * seconds):
        sessions = json.loads(ask_server(lab, "sessions"))
        kernels = [session["kernel"] for session in sessions if session["path"] == path]
        if kernels and kernels[0]["execution_state"] == "idle" and kernels[0]["connections"]:
            return page.wait_for_selector(IDLE)
        page.wait_for_timeout(100)
    pytest.fail(f"no kernel for {path} after {seconds} s")


def keep_picture(page, name):
    """The whole notebook in one picture, for people to look at."""
    height = page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollHeight")
    page.set_viewport_size({"width": 1300, "height": min(16_000, height + 100)})
    page.wait_for_timeout(300)
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
    page.wait_for_timeout(300)
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")
    page.set_viewport_size({"width": 1300, "height": 900})


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_runs_and_its_widgets_reach_the_kernel(page, lab, path, alone):
    run_all(page, lab, path)
    if page.locator('.dlt-claim[aria-label="failed"][data-kind="timed"]').count():
        with alone():  # another test may have spoiled the times
            run_all(page, lab, path)
    keep_picture(page, path.replace("/", "_").removesuffix(".ipynb"))
    figures_are_there(page, path)
    claims_hold(page, path)
    if path in NOTEBOOKS[:2]:  # the field is the same everywhere; later cells that score take long to run again
        guess_reaches_the_kernel(page, path)
    if "Explorer(" in "".join(code_cells(path)):
        arrow_keys_move_the_curve(page)


def figures_are_there(page, path):
    wanted = sum(cell.count("plots.figure(") for cell in code_cells(path))
    assert wanted > 0
    page.wait_for_function(  # the kernel may be idle before the page has drawn what it sent
        "n => { const all = [...document.querySelectorAll('.jp-OutputArea img')];"
        " return all.length >= n && all.every(picture => picture.naturalWidth > 100) }",
        arg=wanted,
    )
    assert all(figure.get_attribute("alt") for figure in page.locator(".jp-OutputArea img").all())


def claims_hold(page, path):
    claims = page.locator(".dlt-claim")
    wanted = sum(len(re.findall(r"^claim\(", cell, re.MULTILINE)) for cell in code_cells(path))
    assert wanted > 0
    claims.nth(wanted - 1).wait_for()
    labels = [claim.get_attribute("aria-label") for claim in claims.all()]
    assert set(labels) <= {"shown", "not shown here"}, claims.all_inner_texts()


def guess_reaches_the_kernel(page, path):
    """Type a number, see it come back from the kernel; run the cell that scores it, see whose guess it is."""
    asked = [name for cell in code_cells(path) for name in re.findall(r"^(\w+) = predict\(", cell, re.MULTILINE)]
    fields = page.locator(".jupyter-widgets input[type=number]")
    assert fields.count() == len(asked) > 0
    fields.first.fill("0.4321")
    fields.first.press("Tab")
    page.wait_for_function("document.querySelector('.jp-Notebook').innerText.includes('guess 0.4321')")
    scored_in = next(i for i, cell in enumerate(code_cells(path)) if re.search(rf"\b{asked[0]}\.score\(", cell))
    scoring = page.locator(".jp-CodeCell").nth(scored_in)
    assert "The default guess" in scoring.locator(".dlt-score").inner_text()
    scoring.locator(".cm-content").focus()  # a click can miss: pictures above may still move the page
    page.wait_for_function("cell => cell.classList.contains('jp-mod-active')", arg=scoring.element_handle())
    page.keyboard.press("Control+Enter")
    mine = scoring.locator(".dlt-score", has_text="Your guess")
    mine.wait_for(timeout=1000 * RUN_S)  # the cell may measure anew
    assert "0.432" in mine.inner_text()


def arrow_keys_move_the_curve(page):
    """Each slider of an explorer by the keyboard: the words above its picture follow."""
    words = page.locator(".dlt-explorer > div").first
    handles = page.locator(".jupyter-widgets [role=slider]").all()
    assert len(handles) == 2
    for handle in handles:
        before = words.inner_text()
        handle.focus()
        for _ in range(5):
            page.keyboard.press("ArrowLeft")
        page.wait_for_function(
            "before => document.querySelector('.dlt-explorer > div').innerText !== before", arg=before
        )


@pytest.mark.parametrize("path", EXERCISES)
def test_exercise_runs_through_unsolved_and_says_so(page, lab, path):
    run_all(page, lab, path)
    keep_picture(page, path.replace("/", "_").removesuffix(".ipynb"))
    page.wait_for_function("document.querySelector('.jp-Notebook').innerText.includes('not attempted yet')")
    assert page.locator('.dlt-claim[aria-label="failed"]').count() == 0


def status(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=100).status
    except urllib.error.HTTPError as error:
        return error.code


def test_server_answers_only_who_has_the_token(lab):
    assert len(lab.token) >= 32
    asked = f"{lab.url}api/contents"
    assert status(asked, Authorization=f"token {lab.token}") == 200
    assert status(asked) == status(asked, Authorization="token wrong") == 403
    login = urllib.request.urlopen(f"{lab.url}lab", timeout=100)
    assert "/login" in login.url


def test_server_and_kernels_listen_on_loopback_only(lab):
    server = psutil.Process(lab.pid)
    listening = {
        place.laddr.ip
        for process in [server, *server.children(recursive=True)]
        for place in process.net_connections("inet")
        if place.status == psutil.CONN_LISTEN
    }
    assert listening
    assert listening <= {"127.0.0.1", "::1"}


def test_make_lab_opens_the_readme(page, lab):
    page.goto(f"{lab.url}?token={lab.token}")
    page.wait_for_selector(".lm-TabBar-tab >> text=README.md")


WAITING = "while not os.path.exists('flag'):\n    time.sleep(0.05)"
RANKS = [
    "%load_ext dltutorial.parallel.cells",
    f"%%ranks 2\nimport os, time\nprint('here', rank)\n{WAITING}\nrank + 40",
    "%%ranks\nif rank == 1:\n    1 / 0",
]


def test_ranks_print_live_and_their_panes_fold(page, lab):
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**cell, "id": f"ranks-{number}", "source": source} for number, source in enumerate(RANKS)]
    spec = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    made = {"nbformat": 4, "nbformat_minor": 5, "metadata": spec, "cells": cells}
    (lab.folder / "ranks.ipynb").write_text(json.dumps(made))
    page.goto(f"{lab.url}lab/tree/ranks.ipynb?token={lab.token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    wait_for_kernel(page, lab, "ranks.ipynb")
    page.click(".lm-MenuBar-item >> text=Run")
    page.click('.lm-Menu-item >> text="Run All Cells"')
    panes = page.locator(".jp-CodeCell").nth(1).locator("details.dlt-rank")
    panes.nth(1).wait_for()  # the cell still runs
    panes.nth(0).get_by_text("here 0").wait_for()
    assert not panes.nth(1).locator("pre").first.is_visible()
    (lab.folder / "flag").touch()
    told = page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]')
    told.wait_for()
    page.wait_for_selector(IDLE)
    assert [pane.get_attribute("open") is not None for pane in panes.all()] == [True, False]
    panes.nth(1).locator("summary").click()
    assert panes.nth(1).locator("pre").all_inner_texts() == ["here 1", "41"]
    error = told.inner_text()
    assert error.startswith("RankFailed: rank 1 of 2 failed: ZeroDivisionError: division by zero")
    assert "Cell In[3], line 3, in <module>" in error
    assert "cells.py" not in error
    keep_picture(page, "ranks")
