import json

import pytest

from dltutorial.course import bench
from dltutorial.course.bench_rows import Row
from dltutorial.errors import CourseError
from dltutorial.profile import measured


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """A file as a benchmark writes it."""
    rows = [Row("naive", (10.0, 12.0, 11.0), "samples/s", predicted=9.0, more={"final loss": "0.12"}), Row("s", (2.0,))]
    monkeypatch.setattr(bench, "BENCHES", {"known": "figures"})
    monkeypatch.setattr(bench, "_benchmark", lambda name: lambda options: iter(rows))
    bench.run("known", json_file=tmp_path / "known-here.json", preset="smoke")
    return tmp_path


def test_what_a_benchmark_wrote_is_read_back_with_its_label(recorded):
    (run,) = measured.load("known", recorded)
    assert run.command == "dltutorial bench known --preset smoke --repeats 5"
    assert run.median("naive") == 11.0
    header, *lines = [(run.label, "median", "predicted", "final loss"), *run.table().rows]
    assert header == run.table().header
    assert lines == [("naive", "11 samples/s", "9 samples/s", "0.12"), ("s", "2 s", "–", "–")]
    assert run.machine in run.label
    assert run.time[:10] in run.label


def test_the_newest_comes_first(recorded):
    older = json.loads((recorded / "known-here.json").read_text()) | {"time": "2020-01-01T00:00:00+00:00"}
    (recorded / "known-before.json").write_text(json.dumps(older))
    assert [run.time[:4] == "2020" for run in measured.load("known", recorded)] == [False, True]


def test_what_is_not_recorded_is_said_and_not_invented(tmp_path):
    assert measured.load("ladder", tmp_path) == ()
    assert measured.show("ladder", tmp_path).rows[0][0] == "not yet recorded"


@pytest.mark.parametrize("content", ["", "[]", '{"bench": "known"}', '{"rows": 3}'])
def test_a_foreign_file_is_named(tmp_path, content):
    (tmp_path / "known-x.json").write_text(content)
    with pytest.raises(CourseError, match=r"known-x\.json is not a recorded benchmark"):
        measured.load("known", tmp_path)


def test_a_row_that_is_not_there_is_named(recorded):
    with pytest.raises(CourseError, match="no row 'fast'"):
        measured.load("known", recorded)[0].median("fast")


def test_everything_recorded_in_the_course_can_be_shown():
    for file in measured.FOLDER.glob("*.json"):
        bench_name = file.name.partition("-")[0]
        assert bench_name in bench.BENCHES
        assert measured.load(bench_name)
