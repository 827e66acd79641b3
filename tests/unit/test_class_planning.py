"""What a class needs, with what each number rests on; and INSTRUCTORS.md, which says the same as the code."""

import json
import re
from pathlib import Path

import pytest

from dltutorial import cli, machine
from dltutorial.course import check
from dltutorial.course.classroom import class_doctor, schedule, seats
from dltutorial.course.classroom.seats import Node
from dltutorial.errors import CourseError
from dltutorial.record import plots, records

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")
ABOUT = {
    folder: {
        file.name[:2]: json.loads(file.read_text(encoding="utf-8"))["metadata"]["dltutorial"]
        for file in sorted((ROOT / folder).glob("[0-9][0-9]_*.ipynb"))
        if ".new." not in file.name
    }
    for folder in ("notebooks", "exercises")
}


@pytest.fixture(autouse=True)
def smoke(monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_PRESET", "smoke")


# Seats


def test_a_node_holds_as_many_learners_as_cores_and_memory_allow():
    learner = seats.plan(1, ["00"], 30, Node(2, 10**11), "smoke").learner_bytes
    for cores, learners_bytes, wanted in [(64, 100, 32), (64, 10, 9), (2, 100, 1), (1, 100, 1)]:
        plan = seats.plan(40, ["00"], 30, Node(cores, int(learners_bytes * learner)), "smoke")
        assert plan.seats == wanted
        assert (plan.nodes - 1) * wanted < 40 <= plan.nodes * wanted


def test_the_largest_chapter_sets_the_memory_and_all_add_to_the_time():
    both = seats.plan(2, ["00", "11"], 75, Node(4, 10**11), "smoke")
    alone = {chapter: seats.plan(2, [chapter], 75, Node(4, 10**11), "smoke") for chapter in ("00", "11")}
    assert both.learner_bytes == max(plan.learner_bytes for plan in alone.values())
    assert both.reserved_min == 75 + 45


def test_what_this_machine_has_measured_replaces_the_recorded_runs():
    writer = records.Writer("00", "smoke")
    for seconds, peak_bytes in ((3.0, 7 * 10**9), (9.0, 5 * 10**9)):
        writer.write("00_welcome", seconds, "s", kind="run", peak_bytes=peak_bytes)
    records.Writer("00", "gpu").write("00_welcome", 99.0, "s", kind="run", peak_bytes=9 * 10**10)
    run = seats.measured(["00"], "smoke")["00"]
    assert (run.seconds, run.peak_bytes, run.where) == (9.0, 7 * 10**9, "this machine's records, preset smoke")
    assert seats.measured(["01"], "smoke")["01"].where.startswith("AMD EPYC")


def test_every_chapter_has_a_recorded_run():
    assert {row["chapter"] for row in plots.reference("course_runs")} == set(ABOUT["notebooks"])


def test_every_number_says_what_it_rests_on():
    text = class_doctor.report(40, cores=64, memory_gb=256)
    rows = [line for line in text.split("Slurm")[0].splitlines()[1:] if line]
    assert all(re.match(r"  \S+( \S+)?  +\S.*?  +\S", line) for line in rows), rows
    assert "40 learners" in text
    assert re.search(r"NodeCnt=3 .*", text)
    assert "--cpus-per-task=2" in text
    assert "export DLTUTORIAL_PRESET=smoke" in text
    assert machine.label() not in text.splitlines()[0]


def test_another_preset_than_the_measured_one_is_said(monkeypatch):
    assert "not what was measured" not in class_doctor.report(3)
    monkeypatch.setenv("DLTUTORIAL_PRESET", "laptop")
    assert "laptop here" in class_doctor.report(3)


def test_a_class_of_one_is_told_in_the_singular_and_its_network_is_not_nothing():
    text = class_doctor.report(1, cores=1, memory_gb=8)
    assert "on nodes as described: 1 core, 8 GB" in text
    assert "1 learner, 1 a node" in text
    assert not re.search(r"(?<![\d.])0(\.0)? [GM]B", text)


def test_too_little_time_is_said():
    assert "200 min too few" in class_doctor.report(3, chapters=["1", "profile", "03", "7", "8"], minutes=25)
    assert "5 min are left" in class_doctor.report(3, chapters=["00"], minutes=35)


@pytest.mark.parametrize(
    "words",
    ["--class 0", "--class -1", "--class 10001", "--class x", "--class 3 --chapters 77", "--class 3 --memory nan",
     "--class 3 --memory 0.5", "--class 3 --cores 0", "--class 3 --minutes 0", "--class 3 --minutes 999999",
     "--schedule half-day", "--class 3 --schedule half-day --chapters 01", "--class 3 --schedule never"],
)  # fmt: skip
def test_what_cannot_be_is_one_line(words, capsys):
    try:
        status = cli.main(["doctor", *words.split()])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert (status, said.out, len(said.err.splitlines())) == (2, "", 1)


# Schedules


def tables(heading):
    """The rows, as lists of cells, of the first table under a heading of INSTRUCTORS.md."""
    part = re.split(r"^## ", GUIDE, flags=re.MULTILINE)
    (text,) = [one for one in part if one.startswith(heading)]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("day", schedule.SCHEDULES)
def test_a_schedule_takes_the_minutes_that_its_notebooks_say(day):
    for slot in schedule.SCHEDULES[day]:
        if slot.chapter:
            about = ABOUT["exercises" if slot.exercise else "notebooks"][slot.chapter]
            assert slot.minutes == about["minutes"], slot


@pytest.mark.parametrize(("day", "heading"), [("half-day", "Half a day"), ("one-day", "One day")])
def test_the_guide_shows_the_schedules_and_their_sums(day, heading):
    *rows, total = tables(heading)
    slots = schedule.SCHEDULES[day]
    assert [int(row[1]) for row in rows] == [slot.minutes for slot in slots]
    clock = 9 * 60
    for (start, _, what, *_), slot in zip(rows, slots, strict=True):
        assert start == f"{clock // 60:02}:{clock % 60:02}"
        clock += slot.minutes
        if slot.chapter:
            folder = "exercises" if slot.exercise else "notebooks"
            assert re.search(rf"\({folder}/{slot.chapter}_\w+\.ipynb\)", what), what
        else:
            assert what.lower().startswith(slot.what.split(",")[0])
    assert (total[0], int(total[1].strip("*"))) == (f"{clock // 60:02}:{clock % 60:02}", schedule.minutes(day))


@pytest.mark.parametrize("heading", ["Half a day", "One day"])
def test_the_guides_run_times_are_the_recorded_ones(heading):
    known = {row["chapter"]: row for row in plots.reference("course_runs")}
    for row in tables(heading)[:-1]:
        slot = re.search(r"(notebooks|exercises)/(\d\d)_", row[2])
        kind = {"notebooks": "seconds", "exercises": "exercise_seconds"}
        assert row[3] == (f"{float(known[slot[2]][kind[slot[1]]]):.0f} s" if slot else "–"), row


# The guide


def test_the_guides_links_and_commands_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", GUIDE)
    assert targets
    assert not [target for target in targets if target != "TROUBLESHOOTING.md" and not (ROOT / target).exists()]
    commands = re.findall(
        r"(?:^|/|`)dltutorial ((?:doctor|run|class|bench|data|pocket)\b[^\n`#]*)", GUIDE, re.MULTILINE
    )
    assert len(commands) >= 8
    for command in commands:
        words = ["3" if word == "N" else word for word in command.split() if not re.search(r"^[\[<…]|[\]>…]$", word)]
        cli.make_parser().parse_args(words)


def test_the_guides_misconceptions_are_what_the_checks_say():
    """Each quoted hint is in the source of that exercise's check; every exercise is there."""
    rows = tables("What learners get wrong")
    assert {row[1].strip("`") for row in rows} == set(dir(check))
    for chapter, exercise, *quotes in rows:
        source = re.sub(r'"\s*f?"', "", (ROOT / "dltutorial" / "course" / f"exercises_{chapter}.py").read_text())
        found = re.findall(r"“([^”]+)”", " ".join(quotes))
        assert len(found) >= 2, exercise
        for quote in found:
            assert quote.rstrip("…").strip() in source, (exercise, quote)


def test_a_chapter_nobody_has_measured_is_an_error():
    with pytest.raises(CourseError, match="run it first"):
        seats.measured(["99"], "smoke")
