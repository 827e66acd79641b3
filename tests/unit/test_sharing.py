"""What leaves a learner's records: nothing without joining, and then the listed fields, in one file of their own."""

import getpass
import json
import os
import re
import socket
import stat
import threading
import warnings
from pathlib import Path

import pytest

from dltutorial import cli, machine
from dltutorial.course import classroom
from dltutorial.course.checks import Exercise, Wrong
from dltutorial.errors import CourseError
from dltutorial.record import records, sharing


@pytest.fixture
def room(tmp_path, monkeypatch):
    """The class's folder; the learner's setting is the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DLTUTORIAL_CLASS", raising=False)
    folder = tmp_path / "class"
    folder.mkdir()
    return folder


def shared(folder):
    (file,) = folder.iterdir()
    return [json.loads(line) for line in file.read_text().splitlines()]


def fails(fn):
    """A case"""
    raise Wrong(1, 2, "Look at /var/somebody/thing.py, line 3.")


def do_something():
    writer = records.Writer("00", "smoke")
    writer.write("peak memory copy", 2.4e10, "bytes/s", median=1.0)
    writer.write("something of mine", 1.0, "s")
    writer.write("matmul", 103.0, "GFLOP/s", kind="prediction", measured=103.0, guess=50.0, touched=True, question="?")
    writer.write("It holds", True, kind="claim", status="shown", evidence="1 s on a secret machine")
    writer.write("It does not", False, kind="claim", status="failed", evidence="2 s")
    Exercise("total", "00", [fails])(lambda: None)
    records.Writer("train", "smoke").write("valid/rmse", 0.4, run="my_secret_run")
    records.Writer("00", "smoke", Path(os.environ["DLTUTORIAL_RUNS"]) / "other.jsonl").write("ladder_gain", 2.0)


def test_nothing_is_shared_unless_a_learner_joins(room):
    do_something()
    assert not list(room.iterdir())
    assert "nothing is shared" in classroom.status()


def test_half_a_character_in_a_record_is_shared_as_a_question_mark(room):
    classroom.join(room)
    records.Writer("00", "smoke").write("peak memory copy", 1.0, "b\ud800")
    assert [line["unit"] for line in shared(room)] == ["b?"]


def test_only_the_listed_fields_are_shared(room):
    classroom.join(room)
    do_something()
    copy, guess, holds, fails, check = shared(room)
    assert copy == {"time": copy["time"], "chapter": "00", "kind": "measurement", "what": "peak memory copy",
                    "value": 2.4e10, "unit": "bytes/s", "preset": "smoke"}  # fmt: skip
    assert set(guess) == {"time", "chapter", "kind", "what", "unit", "guess", "touched", "measured"}
    assert set(holds) == {"time", "chapter", "kind", "status"}
    assert fails["what"] == "It does not"
    assert set(check) == {"time", "chapter", "kind", "what", "status", "failed", "hint"}
    assert (check["status"], check["failed"]) == ("wrong", "A case")
    assert check["hint"] == "Look at …, line 3."


@pytest.mark.parametrize(
    "secret", ["/some/place/x.py", "~joe/x.py", r"\\server\share\x", "C:" + r"\joe\x", "joe@x.org", "http://joe:pw@h/x"]
)
def test_no_path_and_no_address_goes_to_the_class(room, secret):
    classroom.join(room, "me")
    records.Writer("00", "smoke").write("peak memory copy", 1.0, f"see {secret} there")
    assert '"see … there"' in (room / "me.jsonl").read_text()


def test_a_number_that_is_none_is_not_shared(room):
    classroom.join(room, "me")
    records.Writer("00", "smoke").write("ladder_gain", float("nan"), "×")
    assert (room / "me.jsonl").read_text() == ""


def test_no_name_host_path_or_machine_leaves(room, monkeypatch):
    classroom.join(room)
    do_something()
    text = next(room.iterdir()).read_text()
    secrets = [machine.label(), str(Path.home()), str(room), "secret", "versions", "torch", "evidence"]
    secrets += [word for word in (getpass.getuser(), socket.gethostname()) if len(word) > 4]
    assert not [word for word in secrets if word in text]


def test_the_pseudonym_is_made_up_and_says_nothing(room):
    for _ in range(20):
        classroom.join(room)
        classroom.leave()
    drawn = {file.stem for file in room.iterdir()}
    assert len(drawn) == 20
    assert all(re.fullmatch(r"[a-z]+-[a-z]+-\d{3}", name) for name in drawn)
    assert getpass.getuser() not in {word for name in drawn for word in name.split("-")}


def test_status_shows_every_line_and_leaving_ends_it(room):
    said = classroom.join(room, "blue-whale")
    assert "You are blue-whale" in said
    do_something()
    text = (room / "blue-whale.jsonl").read_text()
    assert text in classroom.status() + "\n"
    classroom.leave()
    do_something()
    assert (room / "blue-whale.jsonl").read_text() == text
    classroom.join(room)
    classroom.leave(remove=True)
    assert [file.name for file in room.iterdir()] == ["blue-whale.jsonl"]
    assert classroom.leave() == "You are in no class: nothing is shared."


def test_a_file_that_cannot_be_removed_keeps_the_membership(room, monkeypatch):
    """So the learner can remove it later."""
    classroom.join(room, "ann")
    plain = Path.unlink

    def unlink(file, missing_ok=False):
        if file.suffix == ".jsonl":
            raise PermissionError(1, "Operation not permitted", str(file))
        plain(file, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(CourseError, match="cannot remove"):
            classroom.leave(remove=True)
    assert "is removed" in classroom.leave(remove=True)
    assert not list(room.iterdir())


@pytest.mark.parametrize("about", ['"folder": "/x", "inode": 1e400', '"folder": "/x\\u0000y"'])
def test_a_membership_that_cannot_be_is_told_and_left(room, about):
    sharing.setting_file().parent.mkdir(parents=True, exist_ok=True)
    sharing.setting_file().write_text(f'{{{about}, "name": "ann"}}')
    with pytest.raises(CourseError, match="leave it with dltutorial class leave"):
        classroom.status()
    assert "the setting was damaged" in classroom.leave()


def test_leaving_removes_no_file_that_is_somebody_elses_by_now(room):
    classroom.join(room, "ann")
    (room / "ann.jsonl").rename(room / "old")
    (room / "ann.jsonl").write_text("another's\n")
    assert "is a copy, or somebody else's by now, and stays" in classroom.leave(remove=True)
    assert (room / "ann.jsonl").read_text() == "another's\n"


def test_who_may_not_look_into_the_class_any_more_can_leave_it(room, monkeypatch):
    classroom.join(room, "ann")
    monkeypatch.setattr(os, "access", lambda place, how: Path(place) != room)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda file: _denied(file) if file.parent == room else exists(file))
    with pytest.raises(CourseError, match="is out of reach now"):
        classroom.leave(remove=True)
    assert "is out of reach now" in classroom.leave()
    assert not sharing.setting_file().exists()


def _denied(file):
    raise PermissionError(13, "Permission denied", str(file))


def test_leaving_removes_no_file_of_another_user_that_has_the_number_of_the_old_one(room, monkeypatch):
    classroom.join(room, "ann")
    monkeypatch.setattr(os, "getuid", lambda: (room / "ann.jsonl").stat().st_uid + 1)
    assert "is a copy, or somebody else's by now, and stays" in classroom.leave(remove=True)
    assert (room / "ann.jsonl").exists()


def test_joining_twice_or_nowhere_is_one_line(room, tmp_path, capsys):
    assert cli.main(["class", "join", str(tmp_path / "nowhere")]) == 2
    with pytest.raises(SystemExit, match="2"):
        cli.main(["class", "join"])
    assert cli.main(["class", "join", str(room)]) == 0
    assert cli.main(["class", "join", str(room)]) == 2
    assert cli.main(["class", "status"]) == 0
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert all(line.startswith("dltutorial") and ";" in line for line in errors)
    assert "class join: the following arguments are required: FOLDER; see dltutorial class join --help" in errors[1]


def test_of_two_that_join_at_the_same_moment_one_is_told_so(room, monkeypatch):
    told, look = [], sharing.membership

    def second():
        try:
            told.append(classroom.join(room, "second"))
        except CourseError as error:
            told.append(str(error))

    def look_and_linger():
        found = look()
        if threading.current_thread() is not other and not other.ident:
            other.start()
            other.join(1)
        return found

    other = threading.Thread(target=second)
    monkeypatch.setattr(sharing, "membership", look_and_linger)
    assert classroom.join(room, "first").startswith("You are first.")
    other.join()
    assert told[0].startswith("you are first in ")
    assert [file.name for file in room.iterdir()] == ["first.jsonl"]


@pytest.mark.parametrize("words", [["--name", "me", "{}"], ["{}", "--name", "me"], ["--name=me", "{}"]])
def test_the_options_of_joining_may_stand_before_or_behind_the_folder(room, words, capsys):
    assert cli.main(["class", "join", *(word.format(room) for word in words)]) == 0
    assert cli.main(["class", "leave", "--remove"]) == 0
    assert "me.jsonl, is removed" in capsys.readouterr().out


def joined_by_another(monkeypatch, room, tmp_path):
    """Somebody else, of the same account as in many a hub, joins under the same name; returns what they share."""
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
        classroom.join(room, "me")
        records.Writer("00", "smoke").write("ladder_gain", 3.0)
    return (room / "me.jsonl").read_text()


def no_marks(*_):
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize("how", ["same inode", "no marks", "no such function"])
def test_after_the_room_was_cleaned_nobody_writes_into_the_file_of_another(room, tmp_path, monkeypatch, how):
    if how == "no marks":
        monkeypatch.setattr(os, "setxattr", no_marks, raising=False)
        monkeypatch.setattr(os, "getxattr", no_marks, raising=False)
    elif how == "no such function":
        monkeypatch.delattr(os, "setxattr", raising=False)
        monkeypatch.delattr(os, "getxattr", raising=False)
    classroom.join(room, "me")
    if how == "same inode":  # the file system gives the place of what is removed to the next file
        monkeypatch.setattr(sharing.Membership, "inode", property(lambda self: self.file.stat().st_ino))
        try:
            os.setxattr(room / "me.jsonl", "user.test", b"1")
        except (OSError, AttributeError):
            pytest.skip("files take no marks here")
        (room / "me.jsonl").unlink()
    else:
        (room / "me.jsonl").rename(room / "old")
    theirs = joined_by_another(monkeypatch, room, tmp_path)
    with pytest.warns(
        UserWarning, match=r"me\.jsonl is gone or not yours any more; join again: dltutorial class leave"
    ):
        records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert (room / "me.jsonl").read_text() == theirs
    assert "3.0" in theirs
    with pytest.raises(CourseError, match="is gone or not yours any more; join again"):
        classroom.status()
    assert "is a copy, or somebody else's by now, and stays" in classroom.leave(remove=True)
    assert (room / "me.jsonl").read_text() == theirs


def test_where_marks_cannot_be_seen_a_learner_goes_on_sharing(room, monkeypatch):
    """As on a node that mounts the class's folder in another way than the one on which the learner joined."""
    classroom.join(room, "me")
    monkeypatch.setattr(os, "getxattr", no_marks, raising=False)
    records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert len(shared(room)) == 1


def test_in_a_room_that_was_cleaned_no_file_comes_again_by_itself(room):
    classroom.join(room, "me")
    (room / "me.jsonl").unlink()
    with pytest.warns(UserWarning, match="join again"):
        records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert not list(room.iterdir())
    classroom.leave()
    classroom.join(room, "me")
    records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert len(shared(room)) == 1


def test_a_membership_of_an_older_release_goes_on(room):
    classroom.join(room, "me")
    about = json.loads(sharing.setting_file().read_text())
    sharing.setting_file().write_text(json.dumps({name: about[name] for name in ("folder", "name")}))
    records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert len(shared(room)) == 1


def test_a_user_without_a_home_records_without_a_word_about_a_class(room, monkeypatch, recwarn):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert not recwarn.list
    assert "You are in no class" in classroom.status()


@pytest.mark.parametrize("obstacle", ["gone", "link", "pipe", "full", "damaged"])
def test_a_folder_that_cannot_be_written_costs_a_warning_and_no_record(room, tmp_path, obstacle):
    classroom.join(room, "me")
    file = room / "me.jsonl"
    file.unlink()
    if obstacle == "gone":
        room.rmdir()
    elif obstacle == "link":
        (tmp_path / "precious").write_text("keep\n")
        file.symlink_to(tmp_path / "precious")
    elif obstacle == "pipe":
        os.mkfifo(file)
    elif obstacle == "full":
        file.write_bytes(b"\n" * sharing.MOST_BYTES)
    else:
        sharing.setting_file().write_text('{"folder": 3}')
    with pytest.warns(UserWarning, match="your records are kept, but not shared"):
        records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert len(list(records.read(tmp_path / "runs" / "records.jsonl"))) == 1
    assert obstacle != "link" or (tmp_path / "precious").read_text() == "keep\n"
    assert "You have left" in (said := classroom.leave())
    assert "stays" not in said or file.exists()


def test_the_instructor_can_read_what_a_learner_with_a_strict_mask_shares(room):
    before = os.umask(0o077)
    try:
        classroom.join(room, "me")
    finally:
        os.umask(before)
    assert stat.S_IMODE((room / "me.jsonl").stat().st_mode) == 0o644


@pytest.mark.parametrize("word", ["off", "OFF ", " 0", "n", "none", "False"])
def test_it_can_be_switched_off_for_one_process(room, monkeypatch, word):
    classroom.join(room, "me")
    monkeypatch.setenv("DLTUTORIAL_CLASS", word)
    do_something()
    assert (room / "me.jsonl").read_text() == ""
    assert "switched off" in classroom.status()


def test_a_warning_that_is_an_error_here_loses_no_record(room, tmp_path, capsys):
    classroom.join(room, "me")
    (room / "me.jsonl").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records.Writer("00", "smoke").write("ladder_gain", 2.0)
    assert "your records are kept, but not shared with the class" in capsys.readouterr().err


def test_a_setting_with_half_a_character_is_one_line(room, capsys):
    sharing.setting_file().parent.mkdir(parents=True)
    for setting in ({"folder": "/a\ud800", "name": "me"}, {"folder": "/a", "name": "\ud800"}):
        sharing.setting_file().write_text(json.dumps(setting))
        assert cli.main(["class", "status"]) == 2
        assert capsys.readouterr().err.endswith("leave it with dltutorial class leave, and join again\n")
