"""A run's folder has one owner at a time, whatever becomes of it: with real processes, and real kills."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import wait_for

from dltutorial.errors import CourseError
from dltutorial.train import run_lock

# Asks for a folder, says how it went, and keeps it until it is told to end or to say whether it is still the owner.
ASK = """
import os, sys, time
from dltutorial.errors import CourseError
from dltutorial.train import run_lock
{before}
sys.stdin.readline()
try:
    with run_lock.owned(sys.argv[1]):
        {inside}
        print("mine", flush=True)
        sys.stdin.readline()
        run_lock.check(sys.argv[1])
except CourseError as error:
    print(error, flush=True)
"""
NO_LOCKS = """
import errno, fcntl
def lockf(file, how):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.lockf = lockf
"""


@pytest.fixture
def ask(tmp_path):
    """Starts a process that asks for a folder at once, or when ``go`` says so."""
    with contextlib.ExitStack() as ending:

        def start(folder="r", *, wait=False, before="", inside="pass", **env):
            process = subprocess.Popen(
                [sys.executable, "-c", ASK.format(before=before, inside=inside), str(tmp_path / folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | env,
            )  # fmt: skip
            ending.enter_context(process)
            ending.callback(process.kill)
            if not wait:
                go(process)
            return process

        yield start


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def says(process):
    return process.stdout.readline().strip()


def test_another_process_is_refused_in_one_line_that_names_the_owner(ask, tmp_path):
    owner = ask()
    assert says(owner) == "mine"
    refused = says(ask())
    assert f"r is being trained by process {owner.pid} on " in refused
    assert "wait for its end, or choose another run name" in refused
    with pytest.raises(CourseError, match=f"trained by process {owner.pid}"), run_lock.owned(tmp_path / "r"):
        pass
    go(owner)
    assert owner.wait(30) == 0
    assert says(ask()) == "mine"


def test_of_many_that_ask_in_the_same_instant_one_gets_it(ask):
    for _ in range(3):
        processes = [ask(wait=True) for _ in range(4)]
        for process in processes:
            go(process)
        heard = [says(process) for process in processes]
        (owner,) = [process for process, words in zip(processes, heard, strict=True) if words == "mine"]
        assert sum(f"by process {owner.pid}" in words for words in heard) == 3
        go(owner)
        assert owner.wait(30) == 0


def test_one_after_another_gets_it_and_never_two_at_once(tmp_path):
    program = """
import os, sys
from dltutorial.errors import CourseError
from dltutorial.train import run_lock
inside = sys.argv[1] + ".inside"
for _ in range(60):
    try:
        with run_lock.owned(sys.argv[1]):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            os.unlink(inside)
    except CourseError:
        pass
"""
    argv = [sys.executable, "-c", program, str(tmp_path / "r")]
    processes = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=120)[1] for process in processes] == [""] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_killed_owner_has_none_any_more_though_its_forked_children_live(ask, tmp_path):
    fork = "child = os.fork(); child or time.sleep(100); print(child, flush=True)"
    owner = ask(inside=fork)
    child = int(says(owner))
    try:
        assert says(owner) == "mine"
        assert run_lock.is_owned(tmp_path / "r")
        os.kill(owner.pid, signal.SIGKILL)
        with run_lock.owned(tmp_path / "r"):
            os.kill(child, 0)
            assert "is being trained by" in says(ask())  # what was left by the killed one is this one's now
    finally:
        os.kill(child, signal.SIGKILL)
    assert not run_lock.is_owned(tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_lock_stays_where_a_lock_would_be(ask, tmp_path):
    (tmp_path / ".r.lock").write_text("my notes")
    assert "holds something else than a lock; rename it" in says(ask())
    assert (tmp_path / ".r.lock").read_text() == "my notes"


def test_a_lock_that_this_process_loses_by_reading_it_is_had_again_or_the_run_ends(ask, tmp_path):
    """POSIX: who closes a file gives its locks back, as a kernel does that makes an archive of its runs."""
    with run_lock.owned(tmp_path / "r"):
        (tmp_path / ".r.lock").read_bytes()
        run_lock.check(tmp_path / "r")
        assert f"by process {os.getpid()}" in says(ask())
        (tmp_path / ".r.lock").read_bytes()
        other = ask()
        assert says(other) == "mine"
        with pytest.raises(CourseError, match="has another owner by now; this run ends"):
            run_lock.check(tmp_path / "r")
        go(other)
        assert other.wait(30) == 0


def test_an_owner_shows_that_it_lives_whatever_it_waits_for(tmp_path, monkeypatch):
    with run_lock.owned(tmp_path / "r"), run_lock.beating(tmp_path / "r", 0.05):
        os.utime(tmp_path / ".r.lock", (0, 0))
        assert wait_for(lambda: run_lock.silent_s(tmp_path / "r") < 60)
    os.close(os.open(tmp_path / ".r.lock", os.O_CREAT))
    os.utime(tmp_path / ".r.lock", (0, 0))
    time.sleep(0.3)
    assert run_lock.silent_s(tmp_path / "r") > 60


def test_this_process_is_refused_what_it_has_and_keeps_it(ask, tmp_path):
    with run_lock.owned(tmp_path / "r"):
        with pytest.raises(CourseError, match="is being trained by this process"), run_lock.owned(tmp_path / "r"):
            pass
        assert run_lock.is_owned(tmp_path / "r")
        run_lock.check(tmp_path / "r")
        assert f"by process {os.getpid()}" in says(ask())
    assert not run_lock.is_owned(tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_two_names_has_one_owner(ask, tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "also").symlink_to("r")
    with run_lock.owned(tmp_path / "r"):
        assert f"also is being trained by process {os.getpid()}" in says(ask("also"))


def test_a_job_that_slurm_starts_again_gets_in_at_once_and_what_is_left_of_it_writes_no_more(ask):
    """Its node may be out of reach: then nobody tells the file system that the owner is dead."""
    first = ask(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1")
    assert says(first) == "mine"
    for other in ({"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "2"}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}):
        assert "is being trained by" in says(ask(**other))
    again = ask(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="2")
    assert says(again) == "mine"
    go(first)
    assert "has another owner by now; this run ends" in says(first)
    assert first.wait(30) == 0
    assert f"by process {again.pid}" in says(ask())


def test_a_count_of_restarts_that_is_no_number_counts_for_none(ask):
    owner = ask(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="abc")
    assert says(owner) == "mine"
    assert "is being trained by process" in says(ask(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="-1"))


def test_a_lock_with_other_words_in_it_names_no_owner(ask, tmp_path):
    owner = ask()
    assert says(owner) == "mine"
    (tmp_path / ".r.lock").write_text("[" * 200_000)
    assert "r is being trained by another process" in says(ask())
    go(owner)
    assert owner.wait(30) == 0


def test_where_nothing_can_be_locked_a_line_warns_and_the_run_goes_on(ask, tmp_path):
    owner = ask(before=NO_LOCKS)
    assert says(owner) == "mine"
    go(owner)
    assert owner.wait(30) == 0
    (line,) = owner.stderr.read().splitlines()
    assert "r.lock cannot be locked on this file system: start no run of this name twice" in line
    assert list(tmp_path.iterdir()) == []


def test_where_the_owner_cannot_be_known_there_may_be_one(tmp_path):
    (tmp_path / ".r.lock").mkdir()
    assert run_lock.is_owned(tmp_path / "r")
    assert not run_lock.is_owned(tmp_path / "s")


def test_who_has_gone_to_another_folder_owns_none_there(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with run_lock.owned("r"):
        run_lock.check("r")
        monkeypatch.chdir("elsewhere")
        with pytest.raises(CourseError, match="r has another owner by now"):
            run_lock.check("r")
    assert not run_lock.is_owned(tmp_path / "r")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CourseError, match=r"cannot write .*r\.lock: .*; choose a folder") as error:  # noqa: SIM117
        with run_lock.owned(tmp_path / "file" / "r"):
            pass
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_a_lock_that_leads_elsewhere_is_refused_and_what_is_there_stays(tmp_path, kind):
    (precious := tmp_path / "precious.txt").write_text("mine")
    lock = tmp_path / ".r.lock"
    {"link": lock.symlink_to, "hard link": lock.hardlink_to, "pipe": lambda _: os.mkfifo(lock)}[kind](precious)
    with pytest.raises(CourseError, match=r"cannot write .*\.r\.lock"), run_lock.owned(tmp_path / "r"):
        pass
    assert precious.read_text() == "mine"
