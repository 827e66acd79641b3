import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from unittest import mock

import filelock
import pytest
from waiting import wait_for

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.record import records


def test_what_was_written_is_read_back(tmp_path):
    file = tmp_path / "new" / "records.jsonl"
    written = records.Writer("01", "smoke", file).write("loss", 0.5, "", seeds=(1, 2))
    (found,) = records.read(file)
    assert found == json.loads(json.dumps(written))
    assert (found["chapter"], found["preset"], found["value"], found["seeds"]) == ("01", "smoke", 0.5, [1, 2])


def test_numbers_of_numpy_and_torch_become_plain_and_nan_becomes_text(tmp_path):
    import numpy as np
    import torch

    writer = records.Writer("01", "smoke", tmp_path / "r.jsonl")
    writer.write("a", np.float32(0.5), "", tensor=torch.arange(2), nan=float("nan"))
    (found,) = records.read(tmp_path / "r.jsonl")
    assert (found["value"], found["tensor"], found["nan"]) == (0.5, [0, 1], "nan")


def test_a_torn_line_is_passed_over_and_hides_no_later_record(tmp_path, capsys):
    file = tmp_path / "r.jsonl"
    writer = records.Writer("01", "smoke", file)
    writer.write("first", 1)
    with open(file, "a") as lines:
        lines.write('{"what": "sec')
    assert [record["what"] for record in records.read(file)] == ["first"]
    assert capsys.readouterr().err == ""  # it may just be written
    writer.write("third", 3)
    assert [json.loads(line)["what"] for line in file.read_text().splitlines()[::2]] == ["first", "third"]
    for number in (1, 2):
        assert [record["what"] for record in records.read(file)] == ["first", "third"]
        told = f"dltutorial: {file}, line 2 cannot be read, so passed over ({number} such)\n"
        assert capsys.readouterr().err == told
        file.write_text(file.read_text() + "\0\0\n")


FILL = """
import resource, sys, warnings
from pathlib import Path
from dltutorial.course import classroom
from dltutorial.record import records, sharing
most, folder = int(sys.argv[1]), Path(sys.argv[2])
def told(message, *where): raise RuntimeError(message)
warnings.showwarning = told
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # a file has no room beyond this, as on a full disk
try:
    for number in range(100):
        if sys.argv[3] == "records":
            records.Writer("01", "smoke", folder / "full.jsonl").write("first", number)
        else:
            sharing.share({"time": "2026-01-01T00:00:00", "chapter": "01", "kind": "claim", "status": "shown", "n": 1})
        print(number, flush=True)
except Exception as error:
    print(type(error).__name__, error)
"""


def fill(folder, most, what, **env):
    """How many lines were written before it ended, and how it ended."""
    words = [sys.executable, "-c", FILL, str(most), str(folder), what]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | env)
    *written, ending = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    return len(written), ending


@pytest.mark.parametrize("most", [1500, 1501, 1777])
def test_a_full_disk_takes_a_whole_record_or_says_so_and_leaves_no_part_of_one(tmp_path, most):
    file = tmp_path / "full.jsonl"
    written, ending = fill(tmp_path, most, "records")
    assert ending.startswith(f"CourseError cannot write records to {file}: File too large; make room")
    assert [record["value"] for record in records.read(file)] == list(range(written))
    assert file.read_bytes().endswith(b"\n")
    records.Writer("01", "smoke", file).write("there is room again", 1)
    assert list(records.read(file))[-1]["what"] == "there is room again"


def test_a_full_disk_takes_a_whole_line_for_the_class_or_warns(tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "config" / "dltutorial").mkdir(parents=True)
    (tmp_path / "class" / "me.jsonl").touch()
    setting = json.dumps({"folder": str(tmp_path / "class"), "name": "me"})
    (tmp_path / "config" / "dltutorial" / "class.json").write_text(setting)
    written, ending = fill(tmp_path, 777, "class", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert "not shared with the class (File too large)" in ending
    lines = (tmp_path / "class" / "me.jsonl").read_text().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line)["kind"] for line in lines] == ["claim"] * written


MANY = """
import sys, threading
from pathlib import Path
from dltutorial.record import records
def write(thread):
    for number in range(25):
        records.Writer("01", "smoke", Path(sys.argv[1])).write(f"{sys.argv[2]} {thread}", number, text="x" * 9000)
threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_lines_of_several_processes_and_threads_stay_whole_and_none_is_lost(tmp_path):
    words = [sys.executable, "-c", MANY, str(tmp_path / "r.jsonl")]
    several = [subprocess.Popen([*words, str(process)]) for process in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]
    found = sorted((record["what"], record["value"]) for record in records.read(tmp_path / "r.jsonl"))
    assert found == sorted((f"{p} {t}", n) for p in range(3) for t in range(3) for n in range(25))


def test_who_holds_the_file_for_ever_stops_nobody_and_a_line_says_so_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "_PATIENCE_S", 0.2)
    records.Writer("01", "smoke", tmp_path / "r.jsonl").write("first", 1)
    with open(tmp_path / "r.jsonl") as file:  # to read is enough, as others may in a class's folder
        fcntl.flock(file, fcntl.LOCK_EX)
        for number in (2, 3):
            records.Writer("01", "smoke", tmp_path / "r.jsonl").write("later", number)
    assert [record["value"] for record in records.read(tmp_path / "r.jsonl")] == [1, 2, 3]
    told = f"{tmp_path}/r.jsonl is kept locked by another process; it is written to all the same\n"
    assert capsys.readouterr().err == told


def test_a_line_waits_while_another_process_writes_one(tmp_path, capsys):
    records.Writer("01", "smoke", tmp_path / "r.jsonl").write("first", 1)
    write = lambda: records.Writer("01", "smoke", tmp_path / "r.jsonl").write("second", 2)  # noqa: E731
    with open(tmp_path / "r.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (writer := threading.Thread(target=write)).start()
        writer.join(0.5)
        assert len(list(records.read(tmp_path / "r.jsonl"))) == 1
    writer.join()
    assert [record["value"] for record in records.read(tmp_path / "r.jsonl")] == [1, 2]
    assert capsys.readouterr().err == ""


def test_where_no_file_can_be_locked_a_line_says_so_once_and_records_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths.fcntl, "flock", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    for number in (1, 2):
        records.Writer("01", "smoke", tmp_path / "r.jsonl").write("a", number)
    assert [record["value"] for record in records.read(tmp_path / "r.jsonl")] == [1, 2]
    told = f"{tmp_path}/r.jsonl cannot be locked on this file system: let one program at a time write to it\n"
    assert capsys.readouterr().err == told


GOOD = {"time": "2026-01-01", "chapter": "01", "what": "a", "kind": "claim", "preset": "smoke", "machine": "m"}


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, '{"value": ' + "7" * 5000 + "}", "\0" * 512, '{"what": "\0"}', f'{{"time": "20{json.dumps(GOOD)}'],
    ids=["brackets", "digits", "zeros", "control", "two in one"],
)
def test_a_line_that_no_parser_reads_is_passed_over_and_named(tmp_path, line, capsys):
    file, good = tmp_path / "r.jsonl", json.dumps(GOOD)
    file.write_text(f"{good}\n{line}\n{good}\n")
    assert list(records.read(file)) == [GOOD, GOOD]
    assert capsys.readouterr().err == f"dltutorial: {file}, line 2 cannot be read, so passed over (1 such)\n"


def test_a_file_of_which_no_line_is_a_record_is_another_file(tmp_path):
    (file := tmp_path / "notes.txt").write_text("\nmy notes\nof chapter 00\n")
    with pytest.raises(CourseError, match=f"^{file}, line 2 is not a record; remove that line$"):
        list(records.read(file))


@pytest.mark.parametrize("line", ['"' + "x" * 2**25 + '"', "{}", "3"], ids=["long", "object", "number"])
def test_a_line_that_is_no_record_is_named_and_one_cut_short_at_the_end_passed_over(tmp_path, line):
    file, good = tmp_path / "r.jsonl", json.dumps(GOOD)
    file.write_text(f"{good}\n{line}\n{good}\n")
    found = records.read(file)
    assert next(found) == GOOD
    with pytest.raises(CourseError, match=f"^{file}, line 2 is not a record; remove that line$"):
        next(found)
    file.write_text(f"{good}\n{good[:30]}")
    assert list(records.read(file)) == [GOOD]


OTHERS = {
    "progress": '{"step": 1, "loss": 0.5, "time": "2026-01-01"}\n',
    "notebook": '{"cells": [], "metadata": {}}',
    "table": "ranks,samples,step_s\n1,2,3\n",
    "bytes": "\0\0\0",
    "of a class": '{"time": "2026-01-01Z", "chapter": "01", "kind": "claim", "status": "shown"}\n',
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_a_file_that_holds_something_else_gets_no_records(tmp_path, monkeypatch, text):
    (file := tmp_path / "progress.jsonl").write_text(text)
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(file))
    line = r"progress.jsonl holds something else than records; let DLTUTORIAL_RECORDS name a new file$"
    with pytest.raises(CourseError, match=line):
        records.Writer("01", "smoke").write("a", 1)
    assert file.read_text() == text


@pytest.mark.parametrize("is_link", [False, True])
def test_a_persons_own_file_in_the_place_of_the_records_gets_none(tmp_path, monkeypatch, is_link):
    monkeypatch.delenv("DLTUTORIAL_RECORDS", raising=False)
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path / "runs"))
    own = tmp_path / "runs" / "records.jsonl"
    own.parent.mkdir()
    if is_link:
        own.symlink_to(tmp_path / "diary.txt")
    own.write_text('{"id": 1, "text": "my own data"}\n')
    with pytest.raises(CourseError, match=r"records.jsonl holds something else than records; let DLTUTORIAL_RECORDS"):
        records.Writer("01", "smoke").write("a", 1)
    assert own.read_text() == '{"id": 1, "text": "my own data"}\n'


def test_a_folder_that_another_user_holds_is_waited_for(tmp_path, monkeypatch, capsys):
    """Of whose lock this one may only read."""

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(filelock.FileLock, "acquire", refused)
    entered = threading.Event()

    def enter():
        with paths.locked(tmp_path, "another process is making it"):
            entered.set()

    with (tmp_path / ".lock").open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        (waits := threading.Thread(target=enter)).start()
        wait_for(lambda: "another process is making it; waiting for it" in capsys.readouterr().err)
        assert not entered.is_set()
    waits.join(60)
    assert entered.is_set()


TIGHT = json.dumps(GOOD, separators=(",", ":"))
TORN = '{"time": "2026-01-0'


@pytest.mark.parametrize("before", ["", json.dumps(GOOD) + "\n", TIGHT + "\n", TORN, TORN + "\n"])
def test_a_file_of_records_goes_on_whether_empty_or_torn(tmp_path, monkeypatch, before):
    (file := tmp_path / "mine.jsonl").write_text(before)
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(file))
    records.Writer("01", "smoke").write("a", 1)
    assert file.read_text().startswith(before)
    assert json.loads(file.read_text().splitlines()[-1])["value"] == 1
