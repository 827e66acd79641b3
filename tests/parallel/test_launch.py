"""A function on N ranks: values come back in order, errors name their rank, and no process stays behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import faults
import nbformat
import psutil
import pytest
import torch
from executing import executed
from waiting import gone, wait_for

from dltutorial.errors import CourseError
from dltutorial.launch import RankFailed, RanksHang, launch
from dltutorial.launch import local as launching
from dltutorial.ranks import RankInfo

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
LONG_S = 3000.0  # longer than the time limit of a test, so the launch must end for another reason


def test_the_value_of_every_rank_comes_back_in_order():
    assert launch(faults.total, 3, 10, more=1) == [(n, [33.0] * 3) for n in range(3)]
    assert launch(faults.total, 1, 10) == [(0, [0.0] * 3)]


def test_a_function_of_a_cell_and_what_it_refers_to_are_sent():
    class Box:
        def __init__(self, value):
            self.value = value

    Box.__module__ = "__main__"
    scale = torch.arange(3.0)
    boxes = launch(lambda: Box(scale * faults.RankInfo.from_env().rank), 2)
    assert [type(box) for box in boxes] == [Box, Box]
    assert boxes[1].value.tolist() == [0, 1, 2]


def test_ranks_know_their_place_and_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "7")
    monkeypatch.setattr(launching.machine, "cores", lambda: 2)
    for number, (info, env, n_threads, cwd, variable) in enumerate(launch(faults.surroundings, 2)):
        assert info == RankInfo(number, number, 2, 2, "torchrun")
        assert env == {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(n_threads)}
        assert n_threads == max(1, len(os.sched_getaffinity(0)) // 2)
        assert (cwd, variable) == (str(tmp_path), "7")


def test_more_ranks_than_cores_is_a_warning(monkeypatch):
    monkeypatch.setattr(launching.machine, "cores", lambda: 1)
    with pytest.warns(UserWarning, match="2 ranks share 1 cores"):
        launch(faults.total, 2, 1)


def test_printed_lines_carry_the_number_of_their_rank(capsys):
    launch(faults.talk, 2)
    lines = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert [line[9:] for line in own] == ["first", "second", "to stderr", "no newline"]
    assert len(lines) == 8


def test_an_exception_shows_the_traceback_of_its_rank():
    with pytest.raises(RankFailed) as caught:
        launch(faults.divide_on_rank_1, 3, timeout_s=LONG_S)
    assert (caught.value.rank, caught.value.kind) == (1, "ZeroDivisionError")
    text = str(caught.value)
    assert text.splitlines()[0] == "rank 1 of 3 failed: ZeroDivisionError: division by zero"
    assert re.findall(r", in (\w+)", text) == ["divide_on_rank_1", "deeper"]
    assert text.endswith(", in deeper\n    return 1 / x\nZeroDivisionError: division by zero")


def test_the_primary_failure_is_shown_and_not_the_lost_connection():
    with pytest.raises(RankFailed, match="rank 1 of 2 failed: ValueError: the real one") as caught:
        launch(faults.fail_everywhere, 2)
    assert "Connection closed" not in str(caught.value)


def test_a_killed_rank_is_named_and_ends_all():
    with pytest.raises(RankFailed, match=r"rank 1 of 2 failed: .*killed by SIGKILL"):
        launch(faults.die, 2, timeout_s=LONG_S)
    wait_for(lambda: not psutil.Process(forkserver._forkserver._forkserver_pid).children())


def test_a_deadlock_ends_at_the_deadline_and_names_ranks_and_lines():
    with pytest.raises(RanksHang) as caught:
        launch(faults.mismatched, 3, timeout_s=5)
    text = str(caught.value)
    assert caught.value.waiting == (1, 2)
    assert "rank 0 had returned" in text
    assert re.search(
        r'rank 1 waits in all_reduce, called at File ".*faults.py", line \d+, in mismatched: dist.all', text
    )
    assert re.search(r"rank 2 waits in barrier, called at .*: dist\.barrier\(\)", text)


def test_a_value_that_cannot_be_sent_is_one_line():
    with pytest.raises(CourseError, match=r"rank . of 2 failed: .* returned something that cannot be sent") as caught:
        launch(faults.give_generator, 2)
    assert "Traceback" not in str(caught.value)


SCRIPT = """
import os, time
from multiprocessing import forkserver
from pathlib import Path
from dltutorial.launch import launch, start_fork_server
start_fork_server()

def hang(name):
    import torch.distributed as dist
    with open(f"{name}{dist.get_rank()}.partial", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, f"{name}{dist.get_rank()}")
    time.sleep(1000)

try:
    launch(hang, 2, "first")
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(launch(lambda: 5, 2), flush=True)
open("server", "w").write(str(forkserver._forkserver._forkserver_pid))
launch(hang, 2, "second")
"""


@pytest.mark.ci
def test_no_process_outlives_an_interrupted_or_a_killed_script(tmp_path):
    def numbers(name):
        files = [tmp_path / f"{name}{rank}" for rank in (0, 1)]
        wait_for(lambda: all(file.exists() for file in files))
        return [int(file.read_text()) for file in files]

    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with open(tmp_path / "out", "w+") as out:
        script = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, env=env, stdout=out, stderr=out)
        with contextlib.ExitStack() as stack:
            stack.callback(script.wait)
            stack.callback(script.kill)
            first = numbers("first")
            script.send_signal(signal.SIGINT)
            assert all(gone(pid) for pid in first)
            second = numbers("second")
    assert (tmp_path / "out").read_text() == "interrupted\n[5, 5]\n"
    assert all(gone(pid) for pid in [*second, int((tmp_path / "server").read_text())])


CELLS = [
    """
import torch.distributed as dist
from dltutorial.launch import RankFailed, RanksHang, launch
""",
    """
def wrong():
    if dist.get_rank() == 1:
        undefined_name
    dist.barrier()
try:
    launch(wrong, 2)
except RankFailed as error:
    print(error)
""",
    """
def stuck():
    if dist.get_rank() == 1:
        dist.barrier()
try:
    launch(stuck, 2, timeout_s=5)
except RanksHang as error:
    print(error)
""",
]


@pytest.mark.ci
def test_in_a_notebook_a_failed_rank_and_a_waiting_rank_name_the_lines_of_their_cells(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    (tmp_path / "work").mkdir()
    out = tmp_path / "out.ipynb"
    result = executed(tmp_path / "in.ipynb", out, tmp_path / "work", timeout_s=250)
    assert result.error == ""
    cells = nbformat.read(out, 4).cells
    text = ["".join(item.get("text", "") for item in cell.outputs if item.get("name") == "stdout") for cell in cells]
    assert "rank 1 of 2 failed: NameError: name 'undefined_name' is not defined" in text[1]
    assert "Cell In[2], line 3, in wrong\n    undefined_name\n" in text[1]
    assert "rank 1 waits in barrier, called at Cell In[3], line 3, in stuck: dist.barrier()" in text[2]
    assert "rank 0 had returned" in text[2]


@pytest.mark.ci
def test_ranks_start_on_a_machine_whose_own_name_does_not_resolve():
    script = "from dltutorial.launch import launch\nimport faults\nprint(launch(faults.total, 2, 10))"
    # A new network namespace has only a loopback that is down; a new UTS namespace can have a name of its own.
    setup = (
        "import fcntl, socket, struct, subprocess, sys\n"
        "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 0x41))\n"
        "socket.sethostname('name-that-does-not-resolve')\n"
        "sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    )
    unshare = ["unshare", "--net", "--uts"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make namespaces")
    env = {**os.environ, "PYTHONPATH": str(Path(faults.__file__).parent)}
    command = [*unshare, sys.executable, "-c", setup, script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(0, [10.0, 10.0, 10.0]), (1, [10.0, 10.0, 10.0])]\n"
