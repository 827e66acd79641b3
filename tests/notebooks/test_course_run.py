"""``dltutorial run`` from outside: what it leaves, prints and returns, whatever the notebooks do."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import wait_for

from dltutorial import paths
from dltutorial.course.execute import quick_imports
from dltutorial.record import records

CLAIMS = """from dltutorial.course import Chapter
chapter = Chapter("00", preset)
chapter.claim("one is one", 1 == 1, "1 = 1")
chapter.claim("gpus are fast", None, "", needs="a GPU")
chapter.claim("it is fast", False, "0.9 ×", measured=True)
import os
print(os.listdir("."), steps, os.environ["DLTUTORIAL_PRESET"], os.environ["WANDB_MODE"])"""
FAILED_CLAIM = """from dltutorial.course import Chapter
Chapter("01", preset).claim("one is two", 1 == 2, "1 < 2")
open("went_on", "w").close()"""
LONG = "import os, time; open(os.environ['PID_FILE'], 'w').write(str(os.getpid())); time.sleep(1000)"


@pytest.fixture
def course(tmp_path):
    """Make a course's folder with notebooks, each with parameters and one cell of this source."""

    def make(**chapters):
        quick_imports()
        import nbformat.v4 as v4

        (tmp_path / "pyproject.toml").touch()
        (tmp_path / "notebooks").mkdir()
        for name, source in chapters.items():
            first = v4.new_code_cell('preset = "auto"\nsteps = 3', metadata={"tags": ["parameters"]})
            title = v4.new_markdown_cell(f"# Title of {name}")
            notebook = v4.new_notebook(cells=[title, first, v4.new_code_cell(source)])
            notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
            (tmp_path / "notebooks" / f"{name[1:]}.ipynb").write_text(json.dumps(notebook))
        return tmp_path

    return make


def start(folder, *options):
    env = os.environ | {"PID_FILE": str(folder / "pid")}
    command = [sys.executable, "-m", "dltutorial", "run", "--preset", "smoke", "--out", str(folder / "out"), *options]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process):
    stdout, stderr = process.communicate(timeout=250)
    return process.returncode, stdout, stderr.replace("\r", "\n")


@pytest.mark.ci
def test_a_run_shows_what_came_of_each_chapter_and_goes_on_after_a_failure(course):
    folder = course(_00_good=CLAIMS, _01_fact=FAILED_CLAIM, _02_error="1/0", _03_slow="import time; time.sleep(1000)")
    status, stdout, stderr = finish(start(folder, "--jobs", "2", "--timeout", "25", "-p", "steps", "5"))
    assert status == 1
    rows = {line.split()[1]: line.split() for line in stdout.splitlines() if line[:1] in "✓✗"}
    assert [rows[name][0] for name in sorted(rows)] == ["✓", "✗", "✗", "✗"]
    assert rows["00_good"][-5:] == ["1", "1", "1", "0", "finished"]
    assert rows["01_fact"][-5:] == ["0", "0", "0", "1", "failed"]
    assert "01_fact.ipynb: this claim does not hold: one is two (1 < 2)\n" in stderr
    assert (folder / "out" / "work" / "01" / "went_on").exists()
    assert "02_error.ipynb, cell 3: ZeroDivisionError: division by zero" in stderr
    assert "03_slow.ipynb, cell 3: the cell took longer than 25 s" in stderr
    assert "Traceback" not in stderr
    assert "it is fast" not in stderr
    names = {path.name for path in (folder / "out").iterdir()}
    assert {f"{name}.{kind}" for name in rows for kind in ("ipynb", "html")} | {"index.html", "run.json"} <= names
    assert "≠ 1</b> claim different here" in (folder / "out" / "index.html").read_text()
    check_executed(folder / "out")
    runs = [record for record in records.read(paths.records_dir()) if record["kind"] == "run"]
    assert [(record["chapter"], record["unit"]) for record in runs] == [("00", "s"), ("01", "s")]
    assert runs[0]["peak_bytes"] > 30e6


def check_executed(out):
    """The notebook of chapter 00 is trusted and names no path of this machine."""
    quick_imports()
    import nbformat
    from nbformat.sign import NotebookNotary

    notebook = nbformat.read(out / "00_good.ipynb", 4)
    texts = [output.text for output in notebook.cells[-1].outputs if output.output_type == "stream"]
    assert texts == ["[] 5 smoke offline\n"]
    assert NotebookNotary().check_signature(notebook)
    assert str(out) not in json.dumps(notebook.metadata)


def test_ctrl_c_ends_the_kernels_and_keeps_what_was_finished(course):
    """Also a program that a cell waits for ends."""
    waits = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LONG!r}])"
    folder = course(_00_good="1", _01_long=waits, _02_never="1")
    process = start(folder, "--jobs", "1")
    wait_for(lambda: process.poll() is not None or (folder / "pid").exists())
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    status, stdout, stderr = finish(process)
    assert status == 130, stderr
    assert "interrupted: 1 of 3 chapters are finished; they are in " in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert stdout.count("not run") == 2
    assert sorted(path.name for path in (folder / "out").glob("*.ipynb")) == ["00_good.ipynb"]
    assert not list((folder / "out").glob(".*.ipynb"))
    assert "00_good.html" in (folder / "out" / "index.html").read_text()
    assert psutil.wait_procs(family, timeout=90)[1] == []
