"""``dltutorial run`` from outside: what it leaves, prints and returns, whatever the notebooks do."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from waiting import gone, wait_for

from dltutorial.course.execute import quick_imports
from dltutorial.record import records

CLAIMS = """from dltutorial.course import Chapter
chapter = Chapter("00", preset)
chapter.claim("one is one", 1 == 1, "1 = 1")
chapter.claim("gpus are fast", None, "", needs="a GPU")
import os
print(os.listdir("."), os.environ["DLTUTORIAL_PRESET"], os.environ["WANDB_MODE"])"""
FAILED_CLAIM = """from dltutorial.course import Chapter
Chapter("01", preset).claim("one is two", 1 == 2, "1 < 2")
open("went_on", "w").close()"""
OTHERWISE = """from dltutorial.course import Chapter
Chapter("04", preset).claim("it is quicker", False, "0.9 ×", measured=True)"""
# Slow to start, and not ended before it has said what it has to say.
SLOW_START = """import signal, sys, time
if "dltutorial.course.execute" in sys.orig_argv:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    time.sleep(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
"""
LONG = "import os, time; open(os.environ['PID_FILE'], 'w').write(str(os.getpid())); time.sleep(1000)"


@pytest.fixture
def course(tmp_path):
    def make(**chapters):
        quick_imports()
        import nbformat.v4 as v4

        for name, source in chapters.items():
            first = v4.new_code_cell('preset = "auto"\nsteps = 3', metadata={"tags": ["parameters"]})
            title = v4.new_markdown_cell(f"# Title of {name}")
            made = v4.new_notebook(cells=[title, first, v4.new_code_cell(source)])
            made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
            made.metadata["dltutorial"] = {"chapter": name[1:3]}
            (tmp_path / "notebooks").mkdir(exist_ok=True)
            (tmp_path / "notebooks" / f"{name[1:]}.ipynb").write_text(json.dumps(made))
        return tmp_path

    return make


def start(folder, *options):
    env = {**os.environ, "DLTUTORIAL_NOTEBOOKS": str(folder / "notebooks"), "PID_FILE": str(folder / "pid")}
    command = [sys.executable, "-m", "dltutorial", "run", "--preset", "smoke", "--out", str(folder / "out"), *options]
    return subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def finish(process):
    out, err = process.communicate(timeout=250)
    return process.returncode, out, err.replace("\r", "\n")


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.full), ["--jobs", "2"]])
def test_a_run_tells_all_and_goes_on_after_a_failure(course, options):
    dead = "import os; os.kill(os.getpid(), 9)"
    folder = course(_00_good=CLAIMS, _01_claim=FAILED_CLAIM, _02_dead=dead, _03_good="1", _04_other=OTHERWISE)
    status, out, err = finish(start(folder, *options))
    assert status == 1
    rows = {line.split()[1]: line.split() for line in out.splitlines() if line[:1] in "✓✗"}
    assert [rows[name][0] for name in sorted(rows)] == ["✓", "✗", "✗", "✓", "✓"]
    assert rows["00_good"][-5:] == ["1", "1", "0", "0", "finished"]
    assert rows["01_claim"][-5:] == ["0", "0", "0", "1", "failed"]
    assert rows["04_other"][-5:] == ["0", "0", "1", "0", "finished"]
    assert "01_claim.ipynb: this claim does not hold: one is two (1 < 2)\n" in err
    assert (folder / "out" / "work" / "01" / "went_on").exists()
    assert "02_dead.ipynb, cell 3: the kernel died" in err
    assert "Traceback" not in err
    names = {path.name for path in (folder / "out").iterdir()}
    assert {f"{name}.{kind}" for name in rows for kind in ("ipynb", "html")} | {"index.html", "records.jsonl"} <= names


def test_a_measurement_that_is_otherwise_fails_no_run_and_is_shown(course):
    folder = course(_04_other=OTHERWISE)
    status, _, err = finish(start(folder))
    assert status == 0
    assert "does not hold" not in err
    assert "≠ 1</b> claim otherwise" in (folder / "out" / "index.html").read_text()
    assert (
        "≠</b> <b>it is quicker</b> <i>(otherwise on this machine)</i>"
        in (folder / "out" / "04_other.html").read_text()
    )


def test_the_working_directory_is_empty_the_environment_set_and_the_result_trusted(course):
    folder = course(_00_good=CLAIMS)
    status, _, _ = finish(start(folder))
    assert status == 0
    quick_imports()
    import nbformat
    from nbformat.sign import NotebookNotary

    made = nbformat.read(folder / "out" / "00_good.ipynb", 4)
    texts = [output.text for output in made.cells[-1].outputs if output.output_type == "stream"]
    assert texts == ["[] smoke offline\n"]
    assert NotebookNotary().check_signature(made)
    assert str(folder) not in json.dumps(made.metadata)
    runs = [record for record in records.read(folder / "out" / "records.jsonl") if record["kind"] == "run"]
    assert [(record["chapter"], record["unit"]) for record in runs] == [("00", "s")]
    assert runs[0]["peak_bytes"] > 30e6


def test_parameters_reach_the_notebook_in_their_type(course):
    folder = course(_00_good="assert steps == 5, steps")
    assert finish(start(folder, "-p", "steps", "5"))[0] == 0


@pytest.mark.timed
def test_a_chapter_that_takes_too_long_is_told_in_one_line(course):
    folder = course(_00_slow=LONG)
    status, _, err = finish(start(folder, "--timeout", "4"))
    assert status == 1
    assert "00_slow.ipynb, cell 3: the cell took longer than 4 s" in err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["07"], "no chapter '07'"),
        (["-p", "stepz", "5"], "no parameter 'stepz'"),
        (["--preset", "nonsense"], "'nonsense' is not one of"),
        (["--jobs", "0"], "not from 1 to 1,000"),
    ],
)
def test_a_wrong_order_gets_one_line_and_runs_nothing(course, options, why):
    folder = course(_00_good="1")
    status, out, err = finish(start(folder, *options))
    assert (status, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1
    assert not (folder / "out").exists()


def test_an_interrupt_ends_the_kernels_and_keeps_what_was_finished(course):
    folder = course(_00_good="1", _01_long=LONG, _02_never="1")
    process = start(folder)
    wait_for(lambda: process.poll() is not None or (folder / "pid").exists())
    assert process.poll() is None
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    status, out, err = finish(process)
    assert status == 130
    assert [line for line in err.splitlines() if "interrupt" in line] == err.splitlines()[-1:]
    assert "1 of 3 chapters are finished" in err
    assert "Traceback" not in err
    assert "not run" in out
    assert sorted(path.name for path in (folder / "out").glob("*.ipynb")) == ["00_good.ipynb"]
    assert "00_good.html" in (folder / "out" / "index.html").read_text()
    assert psutil.wait_procs(family, timeout=90)[1] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_a_cell_waits_for_ends_with_the_run(course, number):
    waits = "import subprocess, sys; subprocess.run([sys.executable, '-c', PROGRAM])"
    run = start(folder := course(_00_long=f"PROGRAM = {LONG!r}\n{waits}"))
    pid = int(wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text()))
    run.send_signal(number)
    finish(run)
    assert gone(pid)


def test_an_interrupt_while_a_notebooks_process_starts_gives_no_traceback(course, monkeypatch):
    folder = course(_00_long=LONG)
    (folder / "sitecustomize.py").write_text(SLOW_START)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    process = start(folder)
    family = wait_for(lambda: process.poll() is not None or spawned(process.pid))
    time.sleep(0.3)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    status, _, err = finish(process)
    assert status == 130
    assert "0 of 1 chapters are finished" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(family, timeout=90)[1] == []


def spawned(pid):
    """The processes that are about to execute a notebook."""
    return [p for p in psutil.Process(pid).children() if "dltutorial.course.execute" in p.cmdline()]


MOVES = "import os, pathlib; pathlib.Path(os.environ['DLTUTORIAL_NOTEBOOKS'], '00_good.ipynb').rename('mine.ipynb')"
REMOVES = "import os, pathlib, shutil; shutil.rmtree(pathlib.Path(os.environ['DLTUTORIAL_RECORDS']).parent)"


def test_a_chapter_that_is_renamed_while_it_runs_costs_no_table(course):
    status, out, _ = finish(start(course(_00_good=MOVES)))
    assert status == 0
    assert "✓ 00_good" in out
    assert (course() / "out" / "run.json").exists()


def test_a_folder_that_is_removed_while_a_run_writes_it_is_told_for_each_chapter(course):
    status, out, err = finish(start(course(_00_good=REMOVES, _01_next="1")))
    assert status in (1, 2)
    assert "✗ 01_next" in out
    assert "01_next.ipynb, not to its end" in err
    assert "Traceback" not in err


def test_a_wrong_name_for_records_is_told_before_anything_runs(course, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RECORDS", "mine.txt")
    folder = course(_00_good="1")
    status, _, err = finish(start(folder))
    assert status == 2
    assert "DLTUTORIAL_RECORDS" in err
    assert "Traceback" not in err
    assert not (folder / "out").exists()


def test_a_tilde_in_a_folders_name_is_the_home_for_the_kernels_too(course, monkeypatch):
    folder = course(_00_good="from dltutorial import paths; print(paths.runs_dir())")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("DLTUTORIAL_RUNS", "~/my runs")
    status, _, err = finish(start(folder))
    assert status == 0, err
    assert f"{folder}/my runs\\n" in (folder / "out" / "00_good.ipynb").read_text()
