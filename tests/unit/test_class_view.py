"""The page of a class: what an instructor needs is on it, and what somebody put into the folder does no harm."""

import html
import html.parser
import json
import os
import re
import socket
import time
import types
from pathlib import Path

import pytest
from cells import run
from class_of_forty import forty

from dltutorial import cli, paths
from dltutorial.course import classroom, report
from dltutorial.errors import CourseError
from dltutorial.record import sharing

NOW_S = time.time()
EVIL = "</title><script>document.title='harmed'</script><img src=x onerror=alert(1)>"


def line(kind="check", minutes_ago=1.0, **fields):
    """A good line, some fields of it replaced."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60 * minutes_ago))
    good = {
        "check": {"what": "ring", "status": "wrong", "failed": "a case", "hint": "All-gather is missing."},
        "prediction": {"what": "gain", "unit": "×", "guess": 4.0, "touched": True, "measured": 2.75},
        "measurement": {"what": "ladder_gain", "value": 2.75, "unit": "×", "preset": "smoke"},
        "claim": {"what": "It holds", "status": "failed"},
    }[kind]  # fmt: skip
    return json.dumps({"time": when, "chapter": "08", "kind": kind} | good | fields)


def write(folder, name, *texts):
    (folder / f"{name}.jsonl").write_text("".join(f"{text}\n" for text in texts))


def page_of(folder, out):
    """The page as the command writes it."""
    classroom.view(folder, out)
    return out.read_text()


@pytest.fixture
def look(monkeypatch):
    """What the notebook's cells make of a folder: their names, and ``html``, all that they show."""

    def look(folder):
        names = run(monkeypatch, "class", folder=str(folder))
        return types.SimpleNamespace(**names | {"html": "".join(names["displayed"])})

    return look


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    return folder


class Tags(html.parser.HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


# What an instructor sees


def test_forty_learners_with_real_checks(shared, tmp_path, monkeypatch):
    forty(shared, tmp_path, monkeypatch)
    names = run(monkeypatch, "class", folder=str(shared))
    assert len(names["people"]) == 40
    assert not names["problems"]
    (_, exercise, _, hint), still, _ = names["mistakes"][0]
    assert (exercise, len(still)) == ("layer_time_s", 12)
    assert hint == "Every weight is multiplied and then added: that is 2 FLOP, not 1."
    assert sum(person.state == "stuck" for person in names["people"]) == 12
    progress = {exercise: of[:2] for (_, exercise), of in names["progress"].items()}
    assert progress == {"layer_time_s": (20, 12), "ladder_order": (14, 6)}
    (guesses,) = names["guessed"].values()
    assert sum(event.touched for event in guesses) == 30
    text = page_of(shared, tmp_path / "class.html")
    assert "40 learners, 12 stuck" in text
    assert "that is 2 FLOP, not 1" in text
    assert "How fast is a product of large float32 matrices here?" in text


def test_who_is_stuck_quiet_working_and_away(shared, look):
    write(shared, "stuck", *[line(minutes_ago=9 - n) for n in range(3)])
    write(shared, "passed", *[line(minutes_ago=9 - n) for n in range(3)], line(status="passed"))
    write(shared, "moved-on", *[line(minutes_ago=9) for n in range(3)], line("claim", chapter="09"))
    write(shared, "quiet", line(minutes_ago=20))
    write(shared, "away", line(minutes_ago=300))
    write(shared, "new")
    write(shared, "ahead-of-time", line(minutes_ago=-5))
    states = {person.name: person.state for person in look(shared).people}
    assert states == {"stuck": "stuck", "passed": "working", "moved-on": "working", "quiet": "quiet", "away": "away",
                      "new": "away", "ahead-of-time": "working"}  # fmt: skip


def test_the_misconception_most_are_still_at_comes_first(shared, look):
    for n in range(3):
        write(shared, f"over-it-{n}", line(hint="old", minutes_ago=2), line(status="passed"))
    write(shared, "still-0", line(hint="old", minutes_ago=2), line(hint="", failed="four ranks"))
    write(shared, "still-1", line(hint="", failed="four ranks"))
    first, second = look(shared).mistakes
    assert first == (("08", "ring", "four ranks", ""), ["still-0", "still-1"], ["still-0", "still-1"])
    (_, _, _, hint), still, ever = second
    assert (hint, still, len(ever)) == ("old", [], 4)


def test_who_is_at_the_capstone_comes_after_the_last_chapter(shared, look):
    write(shared, "early", line())
    write(shared, "late", line(chapter="15"), line(chapter="capstone", what="capstone", status="passed"))
    seen = look(shared)
    assert not seen.problems
    assert "From chapter 08 to chapter capstone" in seen.html


def test_a_guess_counts_if_it_was_typed_and_the_latest_measurement_counts(shared, look):
    all_run_again = line("prediction", touched=False)  # in the same kernel: the field is at its default again
    typed = line("prediction", guess=1.0), line("prediction", guess=5.5)
    write(shared, "a", *typed, all_run_again, line("measurement", value=3.0))
    write(shared, "b", line("prediction", touched=False), line("measurement"), line("measurement", preset="gpu"))
    seen = look(shared)
    (guesses,) = seen.guessed.values()
    assert [(e.guess, e.measured, e.touched) for e in guesses] == [(5.5, 2.75, True), (4.0, 2.75, False)]
    speeds = {preset: sorted(e.value for e in events) for (_, _, preset), events in seen.speeds.items()}
    assert speeds == {"gpu": [2.75], "smoke": [2.75, 3.0]}


def test_an_empty_folder_and_learners_without_records_give_a_page(shared, look):
    assert "Nobody has joined yet" in look(shared).html
    write(shared, "new")
    assert "Nobody has begun" in look(shared).html


# What somebody may put there


BAD_LINES = {
    "not JSON": "{not json",
    "not a record": "[1, 2]",
    "not UTF-8": b"\xff\xfe{}",
    "nested too deeply": "[" * 3000,
    "5,000 bytes long": "x" * 5000,
    "NaN is no number": line("measurement").replace("2.75", "NaN"),
    "Infinity is no number": line("measurement").replace("2.75", "Infinity"),
    "measured is an absurd number": line("prediction", measured=1e300),
    "value is an absurd number": line("measurement", value=-(10**400)),
    "guess is no number": line("prediction", guess="4"),
    "touched is no truth value": line("prediction", touched=1),
    "of no kind": line(kind="check").replace('"check"', '"curse"'),
    "names no chapter": line(chapter="٠٨"),
    "chapter is no text": line(chapter=8),
    "of no known status": line(status="won"),
    "hint is no text": line(hint={"a": 1}),
    "hint has 241": line(hint="x" * 241),
    "has no name": line(what=""),
    "that is not shared": line("measurement", what="my disk"),
    "at no possible time": line(time="9999-12-31T00:00:00Z"),
    "time is no text": line(time=None),
}


@pytest.mark.parametrize(("why", "bad"), BAD_LINES.items(), ids=BAD_LINES)
def test_a_bad_line_is_named_with_its_reason_and_good_ones_count(shared, look, why, bad):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    (shared / "fox-1.jsonl").write_bytes(bad + b"\n" + line().encode() + b"\n")
    (problem,) = (seen := look(shared)).problems
    assert (problem.file, problem.lines) == ("fox-1.jsonl", 1)
    assert why in problem.why
    assert seen.people[0].wrong_in_a_row == 1
    assert problem.why in html.unescape(seen.html)
    with pytest.raises(seen.BadLine, match=re.escape(why)):
        seen.read_line(bad, NOW_S)


def test_a_line_still_being_written_is_no_problem(shared, look):
    (shared / "fox-1.jsonl").write_text(line() + "\n" + line()[:50])
    seen = look(shared)
    assert not seen.problems
    assert seen.people[0].wrong_in_a_row == 1


def hostile_files(folder, outside):
    """Everything that should not be in such a folder."""
    outside.write_text(line() + "\n")
    (folder / "link.jsonl").symlink_to(outside)
    os.link(outside, folder / "second-name.jsonl")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    (folder / "device.jsonl").symlink_to("/dev/zero")
    with open(folder / "huge.jsonl", "wb") as file:
        file.truncate(2**40)
    (folder / "many.jsonl").write_text("{}\n" * 600_000)
    (folder / "empty-lines.jsonl").write_bytes(b"\n" * 1_000_000)
    (folder / "notes.txt").write_text("hello")
    (folder / ".hidden.jsonl").write_text("hello")
    (folder / f"{EVIL.replace('/', '')}.jsonl").write_text(line())
    (folder / os.fsdecode(b"\xff\xfe.jsonl")).write_text(line())
    (folder / "\u202egnp.jsonl").write_text(line())
    write(folder, "Fox-1", line())
    write(folder, "fox-1", line())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket.jsonl"))


def test_links_pipes_devices_huge_files_and_strange_names_are_listed_not_opened(shared, look, tmp_path, monkeypatch):
    monkeypatch.chdir(shared)
    hostile_files(shared, tmp_path / "outside.jsonl")
    seen = look(shared)
    assert {person.name for person in seen.people} <= {"Fox-1", "fox-1", "many", "empty-lines"}
    why = {problem.file: problem.why for problem in seen.problems}
    for name in ("link", "pipe", "folder", "device", "socket"):
        assert "not an ordinary file" in why[f"{name}.jsonl"]
    assert "file elsewhere" in why["second-name.jsonl"]
    assert "1,048,576.0 MiB" in why["huge.jsonl"]
    assert "nearly the name of Fox-1" in why["fox-1.jsonl"]
    assert next(problem.lines for problem in seen.problems if problem.file == "fox-1.jsonl") is None
    assert sum("not the name" in reason for reason in why.values()) == 5
    text = page_of(shared, tmp_path / "a.html")
    assert "<script" not in text
    assert "\u202e" not in text


def test_markup_in_any_field_is_shown_as_text(shared, tmp_path):
    for field in ("what", "failed", "hint", "unit", "preset"):
        kind = {"unit": "prediction", "preset": "measurement"}.get(field, "check")
        fields = {"hint": "", field: EVIL} if field == "failed" else {field: EVIL}
        write(shared, f"fox-{field}", line(kind, **fields))
    write(shared, "fox-2", line("claim", what=EVIL), EVIL)
    text = page_of(shared, tmp_path / "a.html")
    assert text.count(html.escape(EVIL, quote=False)) >= 7
    found = Tags(text)
    assert not {"script", "img", "iframe", "link", "object"} & found.tags
    assert not [name for name in found.attributes if name.startswith("on") or name in ("src", "srcdoc")]
    assert text.index("Content-Security-Policy") < text.index("<title>")
    assert "default-src 'none'" in text


def test_text_that_changes_its_direction_or_breaks_the_line_is_made_visible(shared, look):
    write(shared, "fox-1", line(hint="a\u202eb\u0000c\nd\ud800"))
    assert "a�b�c�d�" in look(shared).html


def test_absurd_but_possible_numbers_are_drawn(shared, look):
    for n, (guess, measured) in enumerate([(1e18, 1e-300), (-1e18, 0.0), (5e-324, 1e18), (0.0, 0.0)]):
        same = line("prediction", what="same", guess=3.0, measured=3.0)
        far = line("prediction", guess=guess, measured=measured)
        write(shared, f"fox-{n}", far, same, line("measurement", value=measured))
    text = look(shared).html
    assert not re.search(r"\b(nan|inf)\b", text[text.index("<svg") :])
    assert text.count("<svg") == 3


def test_a_flood_of_names_by_one_does_not_drown_the_others(shared, look):
    names = [f"name {n}" for n in range(1250)]
    kinds = [
        flooding
        for name in names
        for flooding in (
            line("check", what=name, hint=name),
            line("prediction", what=name),
            line("claim", what=name),
            line("measurement", preset=name),
        )
    ]
    write(shared, "flood", *kinds)
    for n in range(3):
        write(shared, f"fox-{n}", line("prediction", what="theirs"), line("check", hint="theirs"))
    text = look(shared).html
    assert len(text) < 500_000
    assert text.count("<figure>") == 120
    assert "theirs" in text


def test_no_folder_and_no_place_for_the_page_are_one_line(shared, tmp_path, capsys):
    assert cli.main(["class", "view", str(tmp_path / "nowhere")]) == 2
    assert cli.main(["class", "view", str(shared), "--out", str(shared)]) == 2
    for seconds in ("0", "nan"):
        with pytest.raises(SystemExit):
            cli.main(["class", "view", str(shared), "--watch", seconds])
    with pytest.raises(SystemExit):
        cli.main(["class", "view"])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert "cannot read the folder" in lines[0]


def test_a_learner_who_looks_at_the_room_is_told_whose_it_is(shared, look, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CourseError, match="only its owner may list it"):
        look(shared)


def test_what_is_beyond_the_total_is_not_read_and_says_so(shared, look, monkeypatch):
    write(shared, "a", line(), line())
    write(shared, "b", line(), line())
    names = run(monkeypatch, "class", until="learners, problems =", folder=str(shared))
    names["read_folder"].__globals__["MOST_TOTAL_BYTES"] = 500
    learners, (problem,) = names["read_folder"](shared, NOW_S)
    assert list(learners) == ["a"]
    assert "read in all" in problem.why


@pytest.fixture
def written(monkeypatch):
    """The page is not made, which takes seconds: what is asked for is noted."""
    asked = []

    def write_page(name, out, refresh_s, folder):
        if not Path(folder).is_dir():
            raise CourseError("cannot read the folder")
        asked.append((name, refresh_s))
        return out

    monkeypatch.setattr(report, "write", write_page)
    return asked


def test_a_folder_that_is_away_for_a_moment_does_not_end_the_watching(shared, written, tmp_path, monkeypatch, capsys):
    away = tmp_path / "away"

    def nap(seconds):
        if away.exists():
            away.rename(shared)
        elif len(written) == 2:
            raise KeyboardInterrupt
        else:
            shared.rename(away)

    monkeypatch.setattr(classroom.time, "sleep", nap)
    with pytest.raises(KeyboardInterrupt):
        classroom.view(shared, tmp_path / "a.html", 7)
    assert written == [("class", 7)] * 2
    assert "the page is as it was" in capsys.readouterr().err


def test_a_browser_that_watches_loads_the_page_again(shared, tmp_path):
    write(shared, "fox-1", line())
    out = report.write("class", tmp_path / "a.html", 7, folder=str(shared))
    assert 'http-equiv="refresh" content="7"' in out.read_text()
    assert "refresh" not in page_of(shared, out)


def test_what_is_shared_is_what_can_be_read(shared):
    for kind, fields in sharing.FIELDS.items():
        assert set(json.loads(line(kind))) == {"time", "chapter", "kind", *fields}


@pytest.mark.parametrize("name", ["ipykernel_launcher", "IPython", "markupsafe", "sitecustomize"])
def test_a_program_that_somebody_put_into_the_folder_is_not_run_where_the_page_is_asked_for_there(
    shared, tmp_path, monkeypatch, name
):
    (shared / f"{name}.py").write_text("open('harmed', 'w'); raise SystemExit\n")
    monkeypatch.chdir(shared)
    page_of(Path(), tmp_path / "class.html")
    assert not (shared / "harmed").exists()
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.parametrize("which", [".", "pages"])
def test_a_folder_that_all_may_write_to_is_not_the_courses(shared, monkeypatch, which):
    monkeypatch.chdir(shared)
    (shared / "pyproject.toml").touch()
    (shared / "pages").mkdir()
    shared.chmod(0o755)
    assert paths.course_folder("pages") == shared
    Path(which).chmod(0o777)
    with pytest.raises(CourseError, match=f"everybody may write to {shared}, so no course is taken from there"):
        paths.course_folder("pages")  # the package's own would be another than the one that is meant


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_notebook_that_somebody_put_into_the_folder_is_not_the_courses(shared, tmp_path, monkeypatch):
    monkeypatch.chdir(shared)
    (shared / "pyproject.toml").touch()
    (shared / "pages").mkdir()
    assert paths.course_folder("pages") == shared, "one's own is"
    os.chown(shared / "pages", 12345, 12345)
    assert paths.course_folder("pages") == Path(paths.__file__).parents[1]
