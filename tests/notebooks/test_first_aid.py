"""In a real kernel an error keeps its traceback, and a box below it says what to do."""

import contextlib

import pytest
from folders import ROOT
from live import Notebook
from test_kernel import run  # noqa: F401 -- a fixture: a notebook in its kernel

from dltutorial import advice

ASK = "from dltutorial.course import Chapter\nChapter('00', 'smoke')"
SHAPES = next(one.do for one in advice.table() if one.name == "shapes")


def test_a_box_below_the_traceback_and_the_line_of_the_run_say_what_to_do(run):  # noqa: F811
    result, notebook = run(ASK, "import torch\nx = torch.ones(2, 3)\nx @ x")
    error, box = notebook.cells[1].outputs
    assert "x @ x" in "".join(error.traceback)
    assert box.data["text/plain"] == f"What to do: {SHAPES}"
    assert result.error == f"RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3) → {SHAPES}"


@pytest.fixture(scope="module")
def cell():
    """Run a cell in one kernel. It returns the kinds of its messages, its traceback and its boxes of advice."""
    with contextlib.closing(Notebook("python3")) as notebook:

        def execute(source):
            kinds, trace, boxes = [], "", []

            def hook(message):
                nonlocal trace
                if message["msg_type"] in ("error", "display_data"):
                    kinds.append(message["msg_type"])
                trace += "\n".join(message["content"].get("traceback", ()))
                data = message["content"].get("data", {})
                boxes.extend([data["text/plain"]] if "dlt-advice" in data.get("text/html", "") else [])

            notebook.client.execute_interactive(source, output_hook=hook, timeout=150)
            return kinds, trace, boxes

        execute(ASK)
        execute(ASK)  # asking twice does not advise twice
        yield execute


def test_an_error_of_a_rank_gets_its_box(cell):
    cell("import torch\nfrom dltutorial.launch import launch")
    kinds, trace, boxes = cell("launch(lambda: torch.ones(2) + torch.ones(3), 2)")
    assert kinds[-2:] == ["error", "display_data"]
    assert "Traceback of rank" in trace
    assert boxes == [f"What to do: {SHAPES}"]


@pytest.mark.parametrize(
    "source",
    ["1 / 0", "from dltutorial.errors import DataError\nraise DataError('x: No space left on device; make room')", "1"],
)
def test_an_unforeseen_error_and_one_of_the_course_get_no_box(cell, source):
    assert cell(source)[2] == []


def test_in_a_restarted_kernel_a_cell_that_writes_a_file_keeps_what_the_learner_edited(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", str(ROOT / "hub" / "startup.py"))
    file = tmp_path / "train.py"
    file.write_text("mine = 1\n")
    outputs = []
    with contextlib.closing(Notebook("python3")) as notebook:
        cell = f"%%writefile {file}\ncourse = 1\n"
        notebook.client.execute_interactive(cell, output_hook=outputs.append, timeout=150)
    assert file.read_text() == "course = 1\n"
    assert (tmp_path / "train.mine1.py").read_text() == "mine = 1\n"
    assert "your own train.py is now train.mine1.py" in str(outputs)
