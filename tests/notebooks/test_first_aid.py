"""In a real kernel: the traceback stays as it is, and below it stands one sentence of what to do."""

import contextlib
import resource
import signal
from pathlib import Path

import pytest
from live import Notebook
from test_kernel import run  # noqa: F401 -- a fixture: a notebook in its kernel

from dltutorial import advice
from dltutorial.course import scripts
from dltutorial.errors import CourseError

ASK = "from dltutorial.course import Chapter\nChapter('00', 'smoke')"
SHAPES = next(one.do for one in advice.table() if one.name == "shapes")


def test_below_a_traceback_stands_what_to_do_and_the_line_of_the_run_has_it(run):  # noqa: F811
    result, notebook = run(ASK, "import torch\nx = torch.ones(2, 3)\nx @ x")
    error, box = notebook.cells[1].outputs
    assert "x @ x" in "".join(error.traceback)
    assert box.data["text/plain"] == f"What to do: {SHAPES}"
    assert result.error == f"RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3) → {SHAPES}"


@pytest.fixture(scope="module")
def cell():
    """Run a cell in one kernel; gives its messages' kinds, its traceback and its boxes of advice."""
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


def test_where_there_is_no_room_what_you_edited_keeps_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("mine = 1\n")
    full = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, full[1]))
    try:
        with pytest.raises(CourseError, match=r"cannot write train\.py: File too large; make room, then run again"):
            scripts.take("train.py")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, full)
        signal.signal(signal.SIGXFSZ, was)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("train.py", "mine = 1\n")]
    scripts.take("train.py")
    assert Path("train.mine1.py").read_text() == "mine = 1\n"


def test_in_a_kernel_started_anew_a_later_cell_alone_keeps_what_you_edited(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", str(Path(__file__).parents[2] / "hub" / "startup.py"))
    (mine := tmp_path / "train.py").write_text("mine = 1\n")
    with contextlib.closing(Notebook("python3")) as notebook:
        said = []
        for nothing in ("%%writefile\nx = 1", "%%writefile .\nx = 1", f"%%writefile {tmp_path}\nx = 1"):
            notebook.client.execute_interactive(nothing, output_hook=said.append, timeout=150)
        assert (tmp_path / "train.py").exists()  # no folder was renamed
        cell = f"%%writefile {mine}\ncourse = 1\n"
        notebook.client.execute_interactive(cell, output_hook=said.append, timeout=150)
        (tmp_path / "backup.py").hardlink_to(mine)
        (tmp_path / "linked.py").symlink_to(mine)
        more = cell.replace("course = 1", "course = 2")
        for later in (more, more.replace("train.py", "linked.py"), more.replace("train.py", "linked.py")):
            notebook.client.execute_interactive(later, output_hook=said.append, timeout=150)
    assert mine.read_text() == "course = 2\n"
    assert (tmp_path / "backup.py").read_text() == "course = 1\n"
    assert (tmp_path / "train.mine1.py").read_text() == "mine = 1\n"
    assert "your own train.py is now train.mine1.py" in str(said)
