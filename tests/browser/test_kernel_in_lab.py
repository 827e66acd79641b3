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
IMPORTS = "import os, time\nimport torch.distributed as dist\nfrom dltutorial.launch import launch"
HERE = "def work():\n    print('here', dist.get_rank())\n"
RANKS = [
    f"{IMPORTS}\n{HERE}    while not os.path.exists('flag'):\n        time.sleep(0.05)\n    return 42",
    "launch(work, 2)",
    "def wrong():\n    if dist.get_rank() == 1:\n        1 / 0\nlaunch(wrong, 2)",
]
ENDLESS_RANKS = [
    f"{IMPORTS}\nkept = 42\n{HERE}    while True:\n        time.sleep(0.05)",
    "launch(work, 2)",
    "launch(lambda: kept, 2)",
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


def test_ranks_print_while_they_work_and_an_error_is_theirs(started):
    notebook, flag = started("ranks", RANKS)
    for rank in range(2):
        notebook.cell(1).get_by_text(f"[rank {rank}] here {rank}").wait_for()  # the cell still runs
    flag.touch()
    told = notebook.page.locator(STDERR)
    told.wait_for()
    notebook.wait_until_run()
    notebook.cell(1).get_by_text("[42, 42]").wait_for()
    error = told.inner_text()
    assert error.startswith("RankFailed: rank 1 of 2 failed: ZeroDivisionError: division by zero")
    assert "Cell In[3], line 3, in wrong" in error
    assert "worker.py" not in error
    notebook.keep_picture("ranks")


def test_the_interrupt_of_a_cell_ends_its_ranks_and_the_next_launch_has_new_ones(started):
    notebook, _ = started("endless_ranks", ENDLESS_RANKS)
    for rank in range(2):
        notebook.cell(1).get_by_text(f"[rank {rank}] here {rank}").wait_for()
    notebook.menu("Kernel", "Interrupt Kernel")
    notebook.cell(1).get_by_text("KeyboardInterrupt").first.wait_for()
    notebook.wait_until_run()
    expect(notebook.run(2)).to_have_text("[42, 42]")
    notebook.keep_picture("ranks_interrupted")
