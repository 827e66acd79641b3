"""What a class needs, with what each number rests on; and INSTRUCTORS.md, which says the same as the code."""

import json
import re
from pathlib import Path

import pytest
from cells import run

from dltutorial.course import check
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


# The plan: pages/class_plan.ipynb


@pytest.fixture
def plan(monkeypatch):
    """The notebook's names for these parameters."""

    def plan(**parameters):
        return run(monkeypatch, "class_plan", **{"cores": 64, "memory_gb": 256, **parameters})

    return plan


def test_a_node_holds_as_many_learners_as_cores_and_memory_allow(plan):
    names = plan(learners=40, chapters=["00"])
    learner = names["needs"]["memory"]
    for cores, learners_bytes, wanted in [(64, 100, 32), (64, 10, 9), (2, 100, 1), (1, 100, 1)]:
        needs = names["plan"](40, cores, learners_bytes * learner)
        assert needs["seats"] == wanted
        assert (needs["nodes"] - 1) * wanted < 40 <= needs["nodes"] * wanted


def test_the_largest_chapter_sets_the_memory_and_minutes_add_up(plan):
    both = plan(chapters=["0", "scaling"])
    alone = [plan(chapters=[chapter]) for chapter in ("00", "11")]
    assert both["chapters"] == ["00", "11"]
    assert both["needs"]["memory"] == max(one["needs"]["memory"] for one in alone)
    assert both["needed_min"] == sum(one["needed_min"] for one in alone) == 75


def test_what_this_machine_has_measured_replaces_the_recorded_runs(plan):
    writer = records.Writer("00", "smoke")
    for seconds, peak_bytes in ((3.0, 7 * 10**9), (9.0, 5 * 10**9)):
        writer.write("00_welcome", seconds, "s", kind="run", peak_bytes=peak_bytes)
    records.Writer("00", "gpu").write("00_welcome", 99.0, "s", kind="run", peak_bytes=9 * 10**10)
    runs = plan(chapters=["00", "01"])["runs"]
    assert runs["00"] == (9.0, 7 * 10**9, "this machine's records, preset smoke")
    assert runs["01"][2].startswith("AMD EPYC")


def test_every_chapter_has_a_recorded_run():
    assert {row["chapter"] for row in plots.reference("course_runs")} == set(ABOUT["notebooks"])


def test_every_number_says_what_it_rests_on_and_slurm_gets_its_lines(plan, capsys):
    names = plan(learners=40)
    rows = list(names["rows_of"](names["needs"]))
    assert all(len(row) == 3 and all(row) for row in rows)
    assert [row[0] for row in rows][:3] == ["chapters", "time", "reserve"]
    text = capsys.readouterr().out
    assert "A class of 40 on nodes of 64 cores and 256 GB" in text
    assert "NodeCnt=3 " in text
    assert "--cpus-per-task=2" in text
    assert "export DLTUTORIAL_PRESET=smoke" in text
    assert not re.search(r"(?<![\d.])0(\.0)? [GM]B", " ".join(row[1] for row in rows))


def test_another_preset_than_the_measured_one_is_said(plan, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_PRESET", "laptop")
    names = plan(learners=3)
    assert ("preset", "laptop here") in [row[:2] for row in names["rows_of"](names["needs"])]


def test_too_little_time_is_said(plan):
    for chapters, minutes, words in (
        (["1", "profile", "03", "7", "8"], 25, "200 min too few"),
        (["00"], 35, "5 min are"),
    ):
        names = plan(chapters=chapters, minutes=minutes)
        assert words in dict(row[::2] for row in names["rows_of"](names["needs"]))["time"]


@pytest.mark.parametrize(
    "wrong",
    [{"learners": 0}, {"learners": 10001}, {"chapters": ["77"]}, {"memory_gb": 0.5}, {"cores": 20_000},
     {"chapters": ["00"], "minutes": 999_999}, {"schedule": "Never"}],
)  # fmt: skip
def test_what_cannot_be_is_one_line(plan, wrong):
    with pytest.raises(CourseError) as error:
        plan(**wrong)
    assert "\n" not in str(error.value)


# Schedules

SCHEDULES = ("Half a day", "One day", "Memory and shards", "Model parallelism", "A second day: science at scale")


def tables(heading):
    """The rows, as lists of cells, of the first table under a heading of INSTRUCTORS.md."""
    part = re.split(r"^## ", GUIDE, flags=re.MULTILINE)
    (text,) = [one for one in part if one.startswith(heading)]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("heading", SCHEDULES)
def test_a_schedule_takes_the_minutes_that_its_notebooks_say_and_they_add_up(plan, heading):
    *rows, total = tables(heading)
    clock, chapters = 9 * 60, []
    for start, minutes, what, *_ in rows:
        assert start == f"{clock // 60:02}:{clock % 60:02}"
        clock += int(minutes)
        if slot := re.search(r"\((notebooks|exercises)/(\d\d)_\w+\.ipynb\)", what):
            assert int(minutes) == ABOUT[slot[1]][slot[2]]["minutes"], what
            chapters.append(slot[2])
    assert (total[0], int(total[1].strip("*"))) == (f"{clock // 60:02}:{clock % 60:02}", clock - 9 * 60)
    names = plan(schedule=heading)
    assert (names["chapters"], names["needed_min"]) == (list(dict.fromkeys(chapters)), clock - 9 * 60)


@pytest.mark.parametrize("heading", SCHEDULES)
def test_the_guides_run_times_are_the_recorded_ones(heading):
    known = {row["chapter"]: row for row in plots.reference("course_runs")}
    for row in tables(heading)[:-1]:
        slot = re.search(r"(notebooks|exercises)/(\d\d)_", row[2])
        kind = {"notebooks": "seconds", "exercises": "exercise_seconds"}
        assert row[3] == (f"{float(known[slot[2]][kind[slot[1]]]):.0f} s" if slot else "–"), row


# The guide


def test_the_guides_misconceptions_are_what_the_checks_say():
    """Each quoted hint is in the source of that exercise's check; every exercise is there."""
    rows = tables("What learners get wrong")
    assert {row[1].strip("`") for row in rows} == set(dir(check))
    for _, exercise, *quotes in rows:
        source = re.sub(r'"\s*f?"', "", (ROOT / "solutions" / "checks" / f"{exercise.strip('`')}.py").read_text())
        found = re.findall(r"“([^”]+)”", " ".join(quotes))
        assert len(found) >= 2, exercise
        for quote in found:
            assert quote.rstrip("…").strip() in source, (exercise, quote)
