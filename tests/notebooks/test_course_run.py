"""``dltutorial run`` from outside: what it leaves, prints and returns, whatever the notebooks do."""

import contextlib
import json
import os
import re
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
# What papermill writes of a notebook is half of it.
FULL_DISK = """import sys
if "dltutorial.course.execute" in sys.orig_argv:
    from papermill.iorw import LocalHandler
    def write(self, buf, path):
        with open(path, "w") as file:
            file.write(buf[:20]){}
    LocalHandler.write = write
"""
ASKS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
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


def start(folder, *options, ignored=None):
    env = {**os.environ, "DLTUTORIAL_NOTEBOOKS": str(folder / "notebooks"), "PID_FILE": str(folder / "pid")}
    command = [sys.executable, "-m", "dltutorial", "run", "--preset", "smoke", "--out", str(folder / "out"), *options]
    return subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: [signal.signal(n, signal.SIG_IGN if n == ignored else signal.SIG_DFL) for n in ASKS_TO_END],
    )  # fmt: skip


def finish(process):
    out, err = process.communicate(timeout=250)
    return process.returncode, out, err.replace("\r", "\n")


@pytest.mark.ci
@pytest.mark.parametrize("ending", ["", "; raise OSError(28, 'No space left on device')"])
def test_a_disk_that_is_full_is_told_as_such(course, monkeypatch, ending):
    folder = course(_00_a="1 + 1")
    (folder / "sitecustomize.py").write_text(FULL_DISK.format(ending))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    status, _, err = finish(start(folder))
    assert status == 1
    assert "what was executed cannot be kept: it is half written, as on a full disk; make room, then again" in err
    assert "exit code" not in err


@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.ci), ["--jobs", "2"]])
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


@pytest.mark.ci
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


@pytest.mark.ci
def test_two_notebooks_of_one_number_are_told_apart_first(course):
    folder = course(_00_good="1", _01_one="1", _01_other="1")
    status, out, err = finish(start(folder, "01_one", "01_other"))
    told = "01_other.ipynb says that it is chapter 01, as 01_one.ipynb does"
    assert (status, out, err) == (2, "", f"dltutorial: {told}, and their records would mix; run one at a time\n")
    assert not (folder / "out").exists()
    status, out, err = finish(start(folder))
    assert status == 0
    assert f"{told}: it is left out; run it by its name" in err
    assert sorted(path.name for path in (folder / "out").glob("*.ipynb")) == ["00_good.ipynb", "01_one.ipynb"]
    assert f"pages: {folder / 'again'}" in finish(start(folder, "01_other", "--out", str(folder / "again")))[1]


@pytest.mark.ci
@pytest.mark.parametrize("options", [[], ["--jobs", "2"]])
def test_two_notebooks_whose_names_begin_alike_do_not_share_a_folder(course, options):
    mine = "open('mine', 'x').write(os.environ['DLTUTORIAL_PRESET'])"
    folder = course(_00_good=f"import os; {mine}", _30_a=f"import os; {mine}", _30_b=f"import os; {mine}")
    other = folder / "notebooks" / "30_b.ipynb"
    other.write_text(other.read_text().replace('"chapter": "30"', '"chapter": "31"'))
    status, _, err = finish(start(folder, *options))
    assert status == 0, err
    assert sorted(file.parent.name for file in (folder / "out" / "work").glob("*/mine")) == ["00", "30_a", "30_b"]


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


@pytest.mark.ci
@pytest.mark.parametrize(
    "ignored", [None, signal.SIGINT, signal.SIGHUP], ids=["plain", "in a script's background", "nohup"]
)
@pytest.mark.parametrize("number", ASKS_TO_END)
def test_what_was_finished_is_kept_when_the_time_is_up_or_the_terminal_closes(course, number, ignored):
    folder = course(_00_good="1", _01_long=LONG, _02_never="1")
    process = start(folder, ignored=ignored)
    wait_for(lambda: process.poll() is not None or (folder / "pid").exists())
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    if number == ignored:
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        number = signal.SIGTERM
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)  # a terminal's comes twice
    status, out, err = finish(process)
    assert status == 128 + number
    assert err.splitlines()[-1].startswith("interrupted: 1 of 3 chapters are finished; they are in ")
    assert not re.search("Traceback|Loop .* is closed", err)
    assert "not run" in out
    assert sorted(path.name for path in (folder / "out").glob("*.ipynb")) == ["00_good.ipynb"]
    assert "00_good.html" in (folder / "out" / "index.html").read_text()
    rows = json.loads((folder / "out" / "run.json").read_text())["chapters"]
    assert [row["status"] for row in rows] == ["finished", "not run", "not run"]
    assert psutil.wait_procs(family, timeout=90)[1] == []


@pytest.mark.ci
@pytest.mark.parametrize("output", [">&$gone", ">&$gone 2>&1", ">/dev/full", ">/dev/full 2>&1", ">&- 2>&-"])
def test_whoever_reads_the_output_the_results_are_written(course, output):
    folder = course(_00_good="1", _01_good="2")
    env = os.environ | {"DLTUTORIAL_NOTEBOOKS": str(folder / "notebooks")}
    words = f"{sys.executable} -m dltutorial run --preset smoke --out out {output}"
    gone = "exec {gone}> >(exec true); wait $!; "  # a pipe that nobody reads
    done = subprocess.run(
        ["bash", "-c", gone + words], cwd=folder, env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0
    assert "dltutorial:" not in done.stderr
    assert "Traceback" not in done.stderr
    rows = json.loads((folder / "out" / "run.json").read_text())["chapters"]
    assert [row["status"] for row in rows] == ["finished", "finished"]
    assert {"00_good.html", "01_good.html", "index.html"} <= {path.name for path in (folder / "out").iterdir()}


def test_a_home_that_cannot_be_written_fails_no_chapter(course, monkeypatch):
    folder = course(_00_good="1")
    (folder / "home").touch()  # the superuser may write anywhere but inside a file
    for name in ("JUPYTER_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder / "home" / "jupyter"))
    status, out, err = finish(start(folder))
    assert (status, err.count("exit code")) == (0, 0)
    assert "✓ 00_good" in out


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
