import json
from pathlib import Path

import pytest

from dltutorial.course import bench, benches
from dltutorial.course.bench import BenchRow


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """A file as a benchmark writes it."""
    rows = [
        BenchRow("naive", (10.0, 12.0, 11.0), "samples/s", predicted=9.0, more={"final loss": "0.12"}),
        BenchRow("s", (2.0,)),
    ]
    monkeypatch.setattr(bench, "BENCHES", {"known": "figures"})
    monkeypatch.setattr(benches, "known", lambda preset, repeats: iter(rows), raising=False)
    bench.run("known", json_file=tmp_path / "known-here.json", preset="smoke")
    return tmp_path


def test_what_a_benchmark_wrote_is_read_back_with_its_label(recorded, capsys):
    table = bench.recorded("known", "nersc_ladders", recorded)
    assert table.header[4:] == ("predicted", "measured / predicted", "final loss")
    assert "recorded on " in capsys.readouterr().out
    assert [(row[0], row[1], row[4], row[-1]) for row in table.rows] == [
        ("naive", "11 samples/s", "9 samples/s", "0.12"),
        ("s", "2 s", "–", "–"),
    ]


def test_the_newest_is_shown(recorded, capsys):
    older = json.loads((recorded / "known-here.json").read_text()) | {"time": "2020-01-01T00:00:00+00:00"}
    (recorded / "known-before.json").write_text(json.dumps(older))
    capsys.readouterr()
    bench.recorded("known", "nersc_ladders", recorded)
    assert "2020" not in capsys.readouterr().out


def test_what_is_not_recorded_is_not_invented_and_published_figures_stand_in_its_place(tmp_path, capsys):
    assert "bf16" in str(bench.recorded("ladder", "nersc_ladders", tmp_path))
    assert "Source:" in capsys.readouterr().out


def test_everything_recorded_in_the_course_can_be_shown(capsys):
    for file in (Path(bench.__file__).parents[1] / "reference" / "measured").glob("*.json"):
        bench_name = file.name.partition("-")[0]
        assert bench_name in bench.BENCHES
        assert bench.recorded(bench_name, "nersc_ladders")
        assert "recorded on " in capsys.readouterr().out
