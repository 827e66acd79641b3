"""A function on N ranks: values come back in order; whatever goes wrong is told, and nothing is left behind."""

import contextlib
import errno
import gc
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import faults
import psutil
import pytest
import torch
from executing import executed
from waiting import gone, wait_for

from dltutorial.course import execute
from dltutorial.errors import CourseError
from dltutorial.launch import RankFailed, RanksHang, failures, launch
from dltutorial.launch import local as launching
from dltutorial.ranks import RankInfo

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
FAR_S = 3000.0  # a deadline that a test, which has minutes, does not see: what ends, ends long before it
LAUNCHES = int(os.environ.get("DLTUTORIAL_LAUNCHES", 20))


def left_behind():
    """Ranks, and the open files, threads and ports of this process and its rank server."""
    gc.collect()
    processes = [psutil.Process(), psutil.Process(forkserver._forkserver._forkserver_pid)]
    ports = [c.laddr for process in processes for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    counts = [count for process in processes for count in (process.num_fds(), process.num_threads())]
    return processes[1].children(), counts, ports


# What comes back


def test_every_ranks_value_comes_back_in_order():
    assert launch(faults.total, 3, 10, more=1) == [(n, [33.0] * 3) for n in range(3)]


def test_one_rank_is_a_launch_too():
    assert launch(faults.total, 1, 10) == [(0, [0.0] * 3)]


def test_a_function_of_no_module_and_what_it_refers_to_are_sent():
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
    for number, (info, env, n_threads, cwd, mine) in enumerate(launch(faults.surroundings, 2)):
        assert info == RankInfo(number, number, 2, 2, "torchrun")
        assert env == {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(n_threads)}
        assert n_threads == max(1, len(os.sched_getaffinity(0)) // 2)
        assert (cwd, mine) == (str(tmp_path), "7")


def test_ddp_ends_every_time():
    for _ in range(10):
        first, second = launch(faults.ddp, 2, timeout_s=60)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# What is printed


def test_lines_carry_their_rank_and_stay_whole(capsys):
    launch(faults.talk, 2)
    lines = capsys.readouterr().out.splitlines()
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert [line[9:] for line in own] == ["first", "second", "to stderr", "no newline"]
    assert len(lines) == 8


def test_lines_appear_while_ranks_work(tmp_path, monkeypatch):
    class Seen:
        def write(self, text):
            if "[rank 0] early" in text:
                (tmp_path / "flag").touch()

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Seen())
    launch(faults.talk_then_wait, 2, str(tmp_path / "flag"), timeout_s=60)


# What goes wrong


def test_an_exception_is_that_ranks_with_its_own_frames():
    with pytest.raises(RankFailed) as caught:
        launch(faults.divide_on_rank_1, 3, timeout_s=FAR_S)
    assert (caught.value.rank, caught.value.kind) == (1, "ZeroDivisionError")
    text = str(caught.value)
    assert text.splitlines()[0] == "rank 1 of 3 failed: ZeroDivisionError: division by zero"
    assert re.findall(r", in (\w+)", text) == ["divide_on_rank_1", "deeper"]
    assert "return 1 / x" in text


def test_the_cause_counts_and_not_the_lost_connection():
    with pytest.raises(RankFailed, match="rank 1 of 2 failed: ValueError: the real one") as caught:
        launch(faults.fail_everywhere, 2)
    assert "Connection closed" not in str(caught.value)


def test_a_chain_of_exceptions_is_told_in_order():
    with pytest.raises(RankFailed, match=r"(?s)ZeroDivisionError: division.*direct cause.*KeyError: 'outer'$"):
        launch(faults.chained, 1)


@pytest.mark.parametrize(
    ("how", "told"),
    [("SIGKILL", "killed by SIGKILL"), ("SIGSEGV", "killed by SIGSEGV"), ("exit", "ended with exit code 3")],
)
def test_a_dead_rank_is_named(how, told):
    with pytest.raises(RankFailed, match=f"rank 1 of 2 failed: .*{told}"):
        launch(faults.die, 2, how, timeout_s=FAR_S)


def test_sys_exit_is_no_return():
    with pytest.raises(RankFailed, match=r"rank 0 of 1 failed: SystemExit: 4"):
        launch(faults.leave, 1)


def test_a_hang_says_who_waits_where():
    with pytest.raises(RanksHang) as caught:
        launch(faults.mismatched, 3, timeout_s=1.5)
    text = str(caught.value)
    assert caught.value.waiting == (1, 2)
    assert "rank 0 had returned" in text
    assert re.search(
        r'rank 1 waits in all_reduce, called at File ".*faults.py", line \d+, in mismatched: dist.all', text
    )
    assert re.search(r"rank 2 waits in barrier, called at .*: dist\.barrier\(\)", text)


def test_a_rank_that_keeps_pythons_lock_says_where_too():
    with pytest.raises(RanksHang, match=r"rank 0 is at .*PyDLL\(None\)\.sleep\(60\)"):
        launch(faults.stuck_with_the_lock, 1, timeout_s=1)


def test_a_value_that_cannot_be_sent_is_told_in_one_line():
    told = "rank . of 2 failed: .* returned something that cannot be sent"
    with pytest.raises(CourseError, match=told) as caught:
        launch(faults.give, 2, "generator")
    assert "\n" not in str(caught.value).split("\n\n")[0]
    assert "Traceback" not in str(caught.value)


def test_a_world_size_that_disagrees_is_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(CourseError, match=r"^WORLD_SIZE=4 is set here, but 2 ranks are asked for; unset it .*$"):
        launch(faults.total, 2, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(launch(faults.total, 2, 1)) == 2


def test_a_port_in_use_is_not_in_the_way(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        assert len(launch(faults.total, 2, 1)) == 2


def test_no_free_port_at_all_is_told_in_one_line(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(launching.socket, "create_server", full)
    with pytest.raises(CourseError, match=r"^no port of 127\.0\.0\.1 is free .*Address already in use.*$"):
        launch(faults.total, 2, 1)


def test_what_is_too_large_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(launching, "LIMIT_BYTES", 1000)
    with pytest.raises(CourseError, match=r"total takes .*more than the .* save it to a file"):
        launch(faults.total, 2, bytes(2000))
    with pytest.raises(CourseError, match=r"rank 0 of 1 failed: the function returned .* save it to a file"):
        launch(faults.give, 1, "large")


def test_more_ranks_than_cores_is_a_warning(monkeypatch):
    monkeypatch.setattr(launching.machine, "cores", lambda: 1)
    with pytest.warns(UserWarning, match="2 ranks share 1 cores"):
        launch(faults.give, 2, "none")


# What is left behind: nothing


def test_many_launches_leave_no_process_no_port_no_file_no_thread(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    launch(faults.total, 2, 1)
    before = left_behind()
    for number in range(LAUNCHES):
        if number % 10 == 9:
            with pytest.raises(RankFailed):
                launch(faults.divide_on_rank_1, 2)
        assert launch(faults.total, 2, 1) == [(n, [1.0] * 3) for n in range(2)]

    def nothing_is_left():
        ranks, counts, ports = left_behind()
        no_more = all(now <= then for now, then in zip(counts, before[1], strict=True))
        return ranks == [] and no_more and set(ports) <= set(before[2])

    wait_for(nothing_is_left)
    assert not list(tmp_path.iterdir())


def test_a_ranks_children_end_with_it():
    assert all(gone(pid) for pids in launch(faults.with_children, 2) for pid in pids)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody adopts them")
def test_what_left_a_ranks_process_group_ends_with_it_too(tmp_path):
    for how in ("session", "orphan"):
        assert all(gone(pid) for pid in launch(faults.leave_behind, 2, how)), how
    with pytest.raises(RankFailed, match="exit code 7"):
        launch(faults.leave_behind, 1, str(tmp_path / "pid"))
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody adopts them")
def test_what_left_a_ranks_process_group_ends_with_a_killed_script_too(tmp_path):
    code = """
import os, subprocess, time
from dltutorial.launch import launch
def leave():
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    with open("partial", "w") as file:
        file.write(str(child.pid))
    os.rename("partial", "pid")
    time.sleep(100)
launch(leave, 1)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env)
    try:
        wait_for((tmp_path / "pid").exists)
    finally:
        script.kill()
        script.wait()
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("text", "rank 0 of 1 failed: NoText: its text cannot be had: ValueError in NoText.__str__"),
        ("interrupt", "rank 0 of 1 failed: KeyboardInterrupt"),
        ("back", "rank 0 of 1 returned what cannot be read here (ValueError: invalid literal"),
        ("deep", "rank 0 of 1 failed: the function returned something that cannot be sent (Could not pickle object"),
    ],
)
def test_odd_ends_are_told_as_the_ranks_own(how, told):
    with pytest.raises(CourseError) as caught:
        launch(faults.odd, 1, how)
    assert str(caught.value).startswith(told)
    assert "worker.py" not in str(caught.value) and "pickle.py" not in str(caught.value)


def test_a_copy_that_a_rank_forks_is_no_rank():
    assert launch(faults.odd, 2, "fork") == launch(faults.odd, 2, "fork and fail") == ["its value"] * 2


def test_a_closed_output_and_a_flood_of_it_are_no_obstacle(capsys):
    assert launch(faults.odd, 1, "closed") == [5]
    for how in ("line", "lines"):
        assert launch(faults.odd, 1, how, timeout_s=60) == ["its value"]
        assert len(capsys.readouterr().out) > 10**8


SPEAKS = """
import sys
from pathlib import Path
from dltutorial.launch import launch
def speak():
    print("\N{RIGHTWARDS ARROW}", "x" * 9000)
    return 5
Path(sys.argv[1]).write_text(str([launch(speak, 1), launch(speak, 1)]))
"""


@pytest.mark.ci
@pytest.mark.parametrize("how", [">&-", "2>&-", "<&-", ">&- 2>&- <&-", ">/dev/full", "| head -c 1"])
def test_a_script_whose_standard_streams_are_closed_or_full_gets_its_values(tmp_path, how):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONIOENCODING": "latin-1"}
    line = f"{sys.executable} -c '{SPEAKS}' {tmp_path / 'values'} {how}"
    done = subprocess.run(["bash", "-c", line], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (tmp_path / "values").exists(), done.stderr
    assert (tmp_path / "values").read_text() == "[[5], [5]]"
    assert "Traceback" not in done.stderr


def test_what_the_callers_output_cannot_show_is_no_obstacle(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "latin-1"))
    assert launch(print, 1, "\N{RIGHTWARDS ARROW} here") == [None]
    assert sys.stdout.buffer.getvalue() == b"[rank 0] ? here\n"


@pytest.mark.ci
def test_a_lost_folder_for_temporary_files_costs_a_start_and_no_more(tmp_path):
    code = """
import shutil, os
from dltutorial.launch import launch
print(launch(lambda: shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True) or 1, 2))
print(launch(lambda: 2, 2))
"""
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.returncode) == ("[1, 1]\n[2, 2]\n", 0), done.stderr
    assert "Error" not in done.stderr


SERVER_ENDS = """
import contextlib, os, signal, sys, threading
from multiprocessing import forkserver
sys.path.insert(0, HERE)
import faults, psutil
from dltutorial.errors import CourseError
from dltutorial.launch import launch, warm

def say(*args, **options):
    try:
        print(launch(*args, **options))
    except CourseError as error:
        print(str(error).splitlines()[0])

def act():
    os.kill(forkserver._forkserver._forkserver_pid, signal.NAME)

def act_at_the_first_rank():
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        while not psutil.Process(forkserver._forkserver._forkserver_pid).children():
            pass
        act()

say(faults.signal_the_server, 2, signal.NAME, timeout_s=20)
say(faults.total, 1, 0)
act()  # between two launches
say(faults.total, 1, 0)
threading.Thread(target=act_at_the_first_rank).start()
say(faults.total, 8, 0, timeout_s=20)
say(faults.total, 1, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks outlive their server")
@pytest.mark.parametrize("name", ["SIGSTOP", pytest.param("SIGKILL", marks=pytest.mark.ci)])
def test_a_fork_server_that_is_stopped_or_killed_costs_no_more_than_one_launch(name):
    code = SERVER_ENDS.replace("HERE", repr(str(Path(faults.__file__).parent))).replace("NAME", name)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100)
    by_a_rank, then, between, meanwhile, at_last = done.stdout.splitlines()
    assert then == at_last == "[(0, [0.0, 0.0, 0.0])]", done.stderr
    if name == "SIGSTOP":  # it is awakened, and nothing is lost
        assert (by_a_rank, between, meanwhile[:5]) == ("[1, 1]", then, "[(0, "), done.stdout
    else:
        assert re.match(r"\[1, 1\]|rank \d of 2", by_a_rank)
        assert between == then or between.startswith("the fork server of the ranks does not run")  # it died just now
        assert re.match(r"the fork server of the ranks does not run|.*of 8|\[\(0, ", meanwhile)
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.ci
def test_where_too_few_files_may_be_open_it_says_how_many_ranks_fit():
    code = """
import re, sys, warnings
from dltutorial.errors import CourseError
from dltutorial.launch import launch
warnings.simplefilter("ignore")
try:
    launch(abs, 300, 1)
except CourseError as error:
    print(error)
    fit = int(re.search(r"([0-9]+) do:", str(error))[1])
print(launch(abs, fit, 1) == [1] * fit)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 160; exec {sys.executable} -"], input=code, env=env, capture_output=True, text=True
    )
    refused, fitted = done.stdout.splitlines()
    told = r"300 ranks do not fit here, \d+ do: with 5 for each there are \d+ open files; .* is 160 \(ulimit -n\)"
    assert re.fullmatch(told, refused)
    assert fitted == "True", done.stderr


def test_many_ranks_are_named_in_short():
    many = failures.hang(3, dict.fromkeys(range(1000), '  File "x.py", line 3 in wait\n'), 1001)
    assert str(many).startswith("ranks 0–9 and 990 others of 1001 did not end within 3 s; ")
    assert len(str(many).splitlines()) == 4 and len(str(many)) < 500
    assert many.waiting == tuple(range(1000))
    failed = {rank: failures.Failure("ValueError", "bad", "ValueError: bad") for rank in range(0, 1000, 2)}
    told = str(failures.as_exception(failed, 1000)).splitlines()[-1]
    assert told == "ranks 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 and 489 others failed in the same way"


EARLY = """
import sys
from dltutorial.launch import launch, warm
def wait():
    import time
    time.sleep(1000)
if sys.argv[1] == "warm":
    launch(abs, 1, 1)
try:
    print("begins", flush=True)
    launch(wait, 3)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def marked(value):
    """Processes that have this in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("EARLY") == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.ci
@pytest.mark.parametrize(("how", "moments_s"), [("warm", (0.01, 0.05, 0.3)), ("cold", (0.0, 0.02, 0.1, 1.0))])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_leaves_nothing(tmp_path, how, moments_s, number):
    env = {**os.environ, "EARLY": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    (tmp_path / "script.py").write_text(EARLY)
    for moment_s in moments_s:
        script = subprocess.Popen(
            [sys.executable, "script.py", how], cwd=tmp_path, env=env, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert script.stdout.readline() == "begins\n"
        time.sleep(moment_s)
        os.killpg(script.pid, number)  # as a terminal does, to all that is in the foreground
        out, errors = script.communicate(timeout=200)
        if number == signal.SIGINT:
            assert (out, script.returncode) == ("interrupted\n", 0), errors
            assert "Traceback" not in errors
        wait_for(lambda: not marked(str(tmp_path)))


SCRIPT = """
import os, sys, time
from multiprocessing import forkserver
from dltutorial.launch import launch, warm
warm()
import torch
torch.randn(600, 600) @ torch.randn(600, 600)

def hang(name):
    import torch.distributed as dist
    with open(f"{name}{dist.get_rank()}.partial", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, f"{name}{dist.get_rank()}")
    if dist.get_rank() == 0:
        dist.barrier()
    while dist.get_rank() == 1:
        time.sleep(1)

try:
    launch(hang, 2, "first")
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(launch(lambda: 5, 2), flush=True)
open("server", "w").write(str(forkserver._forkserver._forkserver_pid))
launch(hang, 2, "second")
"""


def pids(folder, name):
    wait_for(lambda: all((folder / f"{name}{rank}").exists() for rank in (0, 1)))
    return [int((folder / f"{name}{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.ci
def test_no_rank_and_no_server_outlives_an_interrupted_or_a_killed_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with open(tmp_path / "out", "w+") as out:
        script = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, env=env, stdout=out, stderr=out)
        try:
            first = pids(tmp_path, "first")
            script.send_signal(signal.SIGINT)
            assert all(gone(pid) for pid in first)
            second = pids(tmp_path, "second")
        finally:
            script.kill()
            script.wait()
    assert (tmp_path / "out").read_text() == "interrupted\n[5, 5]\n"
    assert all(gone(pid) for pid in [*second, int((tmp_path / "server").read_text())])
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.ci
def test_a_long_folder_for_temporary_files_is_no_obstacle(tmp_path):
    """A socket's path has at most 107 bytes; the folders of jobs and of test runs can be longer."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    code = "from dltutorial.launch import launch; print(launch(lambda: 5, 2))"
    env = {**os.environ, "TMPDIR": str(long), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[5, 5]\n", done.stderr


# In a notebook

CELLS = [
    """
from dltutorial.launch import RankFailed, RanksHang
from dltutorial.launch import launch, warm
warm()
import torch
import torch.distributed as dist
from torch import nn
x = torch.randn(1500, 1500, requires_grad=True)
(x @ x).sum().backward(); torch.optim.SGD([x], lr=0.1).step()
with torch.profiler.profile() as profile:
    x @ x
""",
    """
def train(n):
    model = nn.parallel.DistributedDataParallel(nn.Linear(n, n))
    for step in range(5):
        model(torch.randn(8, n)).sum().backward()
    print("trained", flush=True)
    return dist.get_rank(), x.shape[0]
for _ in range(3):
    assert launch(train, 2, 10, timeout_s=60) == [(0, 1500), (1, 1500)]
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
    launch(stuck, 2, timeout_s=1)
except RanksHang as error:
    print(error)
""",
]


def test_a_notebook_that_has_computed_launches_functions_of_its_cells(tmp_path):
    execute.quick_imports()
    import nbformat

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    made.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, tmp_path / "in.ipynb")
    (tmp_path / "work").mkdir()
    out = tmp_path / "out.ipynb"
    result = executed(tmp_path / "in.ipynb", out, tmp_path / "work", timeout_s=100)
    assert result.error == ""
    cells = nbformat.read(out, 4).cells
    text = ["".join(item.get("text", "") for item in cell.outputs if item.get("name") == "stdout") for cell in cells]
    assert sorted(text[1].splitlines()) == ["[rank 0] trained"] * 3 + ["[rank 1] trained"] * 3
    assert "rank 1 of 2 failed: NameError: name 'undefined_name' is not defined" in text[2]
    assert "Cell In[3], line 3, in wrong\n    undefined_name\n" in text[2]
    assert "rank 1 waits in barrier, called at Cell In[4], line 3, in stuck: dist.barrier()" in text[3]
    assert "rank 0 had returned" in text[3]
