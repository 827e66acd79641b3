"""Interrupting and restarting a kernel in JupyterLab, also while its ranks work."""

import pytest
from notebook_page import STDERR, write_notebook
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]

WAITING = "while not os.path.exists('flag'):\n    time.sleep(0.05)"
ENDLESS = [
    "import os, time\nname = 'set'\nprint('kernel', os.getpid())",
    f"print('begun')\n{WAITING}",
    "name + ' above'",
]
RANKS = [
    "%load_ext dltutorial.launch.cells",
    f"%%ranks 2\nimport os, time\nprint('here', rank)\n{WAITING}\nrank + 40",
    "%%ranks\nif rank == 1:\n    1 / 0",
]
ENDLESS_RANKS = [
    "%load_ext dltutorial.launch.cells",
    "%%ranks 2\nimport time\nkept = rank + 40\nprint('here', rank)\nwhile True:\n    time.sleep(0.05)",
    "%%ranks\nkept",
]


@pytest.fixture
def started(open_notebook, lab):
    """``started(name, sources)``: a notebook of these cells in a folder of its own, with Run All chosen."""

    def start(name, sources):
        folder = lab.folder / name
        folder.mkdir()
        write_notebook(folder / "cells.ipynb", sources)
        notebook = open_notebook(f"{name}/cells.ipynb")
        notebook.menu("Run", "Run All Cells")
        return notebook, folder / "flag"

    return start


def test_an_endless_cell_is_interrupted_and_all_runs_again_in_a_new_kernel(started):
    notebook, flag = started("endless", ENDLESS)
    notebook.output(1).get_by_text("begun").wait_for()
    first = notebook.output(0).inner_text()
    notebook.page.click('[data-jp-item-name="interrupt"]')
    notebook.output(1).get_by_text("KeyboardInterrupt").first.wait_for()
    notebook.wait_until_run()
    expect(notebook.run(2)).to_have_text("'set above'")  # the kernel lives and has its variables
    flag.touch()
    notebook.menu("Kernel", "Restart Kernel and Run All Cells…")
    notebook.page.click(".jp-Dialog .jp-mod-accept")
    notebook.output(0).get_by_text("kernel").filter(has_not_text=first).wait_for()
    notebook.wait_until_run()
    assert notebook.page.locator(STDERR).count() == 0
    expect(notebook.output(2)).to_have_text("'set above'")
    expect(notebook.page.locator(".jp-CodeCell .jp-InputPrompt")).to_have_text(["[1]:", "[2]:", "[3]:"])


def test_ranks_print_live_and_their_panes_fold(started):
    notebook, flag = started("ranks", RANKS)
    panes = notebook.cell(1).locator("details.dlt-rank")
    panes.nth(1).wait_for()  # the cell still runs
    panes.nth(0).get_by_text("here 0").wait_for()
    assert not panes.nth(1).locator("pre").first.is_visible()
    flag.touch()
    told = notebook.page.locator(STDERR)
    told.wait_for()
    notebook.wait_until_run()
    assert [pane.get_attribute("open") is not None for pane in panes.all()] == [True, False]
    panes.nth(1).locator("summary").click()
    assert panes.nth(1).locator("pre").all_inner_texts() == ["here 1", "41"]
    error = told.inner_text()
    assert error.startswith("RankFailed: rank 1 of 2 failed: ZeroDivisionError: division by zero")
    assert "Cell In[3], line 3, in <module>" in error
    assert "cells.py" not in error
    notebook.keep_picture("ranks")


def test_ranks_outlive_the_interrupt_of_their_cell_with_their_variables(started):
    notebook, _ = started("endless_ranks", ENDLESS_RANKS)
    panes = notebook.cell(1).locator("details.dlt-rank")
    for rank in range(2):
        panes.nth(rank).locator("pre", has_text=f"here {rank}").wait_for(state="attached")
    notebook.menu("Kernel", "Interrupt Kernel")
    told = notebook.cell(1).locator(STDERR)
    told.wait_for()
    assert told.inner_text().startswith("KeyboardInterrupt: the cell was interrupted")
    assert "variables are kept" in told.inner_text()
    notebook.wait_until_run()
    expect(notebook.run(2).locator("details.dlt-rank pre")).to_have_text(["40", "41"])
    notebook.keep_picture("ranks_interrupted")
