"""A notebook in JupyterLab, as somebody with mouse and keyboard sees and drives it."""

import json
import re
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
IDLE = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
# A folded cell has a placeholder instead of its prompt.
_PROMPT = ".jp-CodeCell .jp-InputPrompt:not(.jp-Placeholder-prompt)"
PROMPTS = f"[...document.querySelectorAll('{_PROMPT}')].map(prompt => prompt.textContent)"
NONE_WAITS = f"{PROMPTS}.every(prompt => !prompt.includes('*'))"
STDERR = '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]'  # errors are shown there, too
RUN_S = 400


class NotebookPage:
    """An open notebook with its kernel; ``page`` is Playwright's page."""

    def __init__(self, page, lab, path):
        self.page, self.lab, self.path = page, lab, path
        page.goto(f"{lab.url}lab/tree/{path}?token={lab.token}&reset")
        self.wait_until_open()

    def wait_until_open(self):
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        self._wait_for_kernel()

    def _wait_for_kernel(self, seconds=200):
        """Run All without a kernel asks which to use; the page says "idle" before there is one, the server knows."""
        for _ in range(10 * seconds):
            kernels = [session["kernel"] for session in sessions(self.lab) if session["path"] == self.path]
            if kernels and kernels[0]["execution_state"] == "idle" and kernels[0]["connections"]:
                return self.page.wait_for_selector(IDLE)
            self.page.wait_for_timeout(100)
        pytest.fail(f"no kernel for {self.path} after {seconds} s")

    def menu(self, name, item):
        self.page.click(f".lm-MenuBar-item >> text={name}")
        self.page.click(f'.lm-Menu-item >> text="{item}"')

    def run_all(self):
        """Run All Cells, and wait until none waits to run; all have run, unless one has failed."""
        self.menu("Run", "Run All Cells")
        self.wait_until_run()
        prompts = self.page.evaluate(PROMPTS)
        said = self.page.locator(STDERR).all_inner_texts()
        assert all(re.search(r"\d", prompt) for prompt in prompts), said  # a failed cell keeps the next from running
        assert not any("Traceback" in text for text in said), said  # the last cell has no next
        return self

    def wait_until_run(self):
        """No cell waits or runs, and the first has run."""
        self.page.wait_for_function(f"/\\d/.test({PROMPTS}[0]) && {NONE_WAITS}", timeout=1000 * RUN_S)
        self.page.wait_for_selector(IDLE)

    def cell(self, number):
        """The code cell of that number, from 0."""
        return self.page.locator(".jp-CodeCell").nth(number)

    def output(self, number):
        """What stands below a code cell."""
        return self.cell(number).locator(".jp-OutputArea-output")

    def focus(self, number):
        """By the keyboard's focus: a click can miss, when pictures above still move the page."""
        cell = self.cell(number)
        placeholder = cell.locator(".jp-InputPlaceholder")
        if placeholder.count():  # the code is folded: a click on its placeholder unfolds it
            placeholder.locator(".jp-Placeholder-content").click()
        cell.locator(".cm-content").focus()
        self.page.wait_for_function("cell => cell.classList.contains('jp-mod-active')", arg=cell.element_handle())
        return cell

    def run(self, number):
        """One cell, by Ctrl+Enter; its output."""
        prompt = self.focus(number).locator(".jp-InputPrompt")
        before = prompt.inner_text()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(
            "([prompt, before]) => prompt.textContent !== before && /\\d/.test(prompt.textContent)",
            arg=[prompt.element_handle(), before],
            timeout=1000 * RUN_S,
        )
        self.page.wait_for_selector(IDLE)
        return self.output(number)

    def write(self, number, source):
        """Replace the source of a cell."""
        self.focus(number)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(source)


def code_cells(path):
    """Sources of a notebook's code cells."""
    cells = json.loads((ROOT / path).read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def write_notebook(file, sources: Iterable[str]):
    """A notebook with these code cells."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(made, file)


def ask_server(lab, what, method="GET"):
    headers = {"Authorization": f"token {lab.token}"}
    request = urllib.request.Request(f"{lab.url}api/{what}", headers=headers, method=method)
    return urllib.request.urlopen(request, timeout=100).read()


def sessions(lab):
    return json.loads(ask_server(lab, "sessions"))


def end_kernels(lab):
    """A kernel lives on when its page is closed, with all its memory."""
    for session in sessions(lab):
        ask_server(lab, f"sessions/{session['id']}", "DELETE")
