"""The plan of a class and INSTRUCTORS.md agree with the notebooks, the recorded runs and the checks."""

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


def test_each_learner_has_a_gpu_if_the_plan_has_gpus(plan, capsys):
    assert plan(learners=40, cores=128, gpus=4)["needs"]["seats"] == 4
    assert "--gpus-per-node=1" in capsys.readouterr().out


def test_the_largest_chapter_sets_the_memory_and_minutes_add_up(plan):
    both = plan(chapters=["0", "11_scaling"])
    alone = [plan(chapters=[chapter]) for chapter in ("00", "11")]
    assert both["chapters"] == ["00", "11"]
    assert both["needs"]["memory"] == max(one["needs"]["memory"] for one in alone)
    minutes = sum(ABOUT["notebooks"][chapter]["minutes"] for chapter in ("00", "11"))
    assert both["needed_min"] == sum(one["needed_min"] for one in alone) == minutes


def test_what_this_machine_has_measured_replaces_the_recorded_runs(plan):
    writer = records.Writer("00", "smoke")
    for seconds, peak_bytes in ((3.0, 7 * 10**9), (9.0, 5 * 10**9)):
        writer.write("00_welcome", seconds, "s", kind="run", peak_bytes=peak_bytes)
    records.Writer("00", "gpu").write("00_welcome", 99.0, "s", kind="run", peak_bytes=9 * 10**10)
    runs = plan(chapters=["00", "01"])["runs"]
    assert runs["00"] == (9.0, 7 * 10**9, "this machine's records, preset smoke")
    assert runs["01"][2].startswith("AMD EPYC")


def test_the_plan_ends_with_the_lines_for_slurm(plan, capsys):
    plan(learners=40)
    stdout = capsys.readouterr().out
    for part in ("NodeCnt=3 ", "--cpus-per-task=2", "export DLTUTORIAL_PRESET=smoke"):
        assert part in stdout


@pytest.mark.parametrize("wrong", [{"learners": 0}, {"chapters": ["77"]}, {"memory_gb": 0.5}, {"schedule": "Never"}])
def test_an_impossible_plan_is_one_line(plan, wrong):
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
    assert set(known) == set(ABOUT["notebooks"])
    for row in tables(heading)[:-1]:
        slot = re.search(r"(notebooks|exercises)/(\d\d)_", row[2])
        kind = {"notebooks": "seconds", "exercises": "exercise_seconds"}
        assert row[3] == (f"{float(known[slot[2]][kind[slot[1]]]):.0f} s" if slot else "–"), row


# The guide


def test_the_guides_misconceptions_are_what_the_checks_say():
    """Each exercise has at least two quoted hints, which its check or a module shared by several checks gives."""
    sources = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "solutions" / "checks").glob("*.py")}
    sources = {name: re.sub(r'"\s*f?"', "", source) for name, source in sources.items()}
    shared = "".join(source for name, source in sources.items() if name not in dir(check))
    rows = tables("What learners get wrong")
    assert {row[1].strip("`") for row in rows} == set(dir(check))
    for _, cell, *quotes in rows:
        exercise = cell.strip("`")
        hints = re.findall(r"“([^”]+)”", " ".join(quotes))
        assert len(hints) >= 2, exercise
        for hint in hints:
            assert hint.rstrip("…").strip() in sources[exercise] + shared, (exercise, hint)
