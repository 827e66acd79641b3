import contextlib
import json
import os
import subprocess
import sys

import pytest

from dltutorial import cli, paths
from dltutorial.course import bench, benches
from dltutorial.course.bench import BenchRow, table
from dltutorial.errors import CourseError
from dltutorial.record import records


@pytest.fixture
def rows(monkeypatch):
    """A benchmark that has its figures already."""
    found = [BenchRow("quick", (0.2, 0.1, 0.4), predicted=0.1), BenchRow("slow", (5.0,)), BenchRow("free", (1.0,))]
    measure(monkeypatch, lambda preset, repeats: iter(found))
    return found


def measure(monkeypatch, found):
    """``bench known`` is this function."""
    monkeypatch.setattr(bench, "BENCHES", ("known",))
    monkeypatch.setattr(benches, "known", found, raising=False)


def test_table_shows_median_spread_and_prediction(rows, capsys):
    assert cli.main(["bench", "known"]) == 0
    said = capsys.readouterr().out
    assert "python" in said.splitlines()[0]
    (quick,) = [line for line in said.splitlines() if line.startswith("quick")]
    assert " ".join(quick.split()) == "quick 200 ms 100 ms to 400 ms 3 100 ms 2.00"
    slow, free = (line for line in said.splitlines() if line.startswith(("slow", "free")))
    assert [line.split()[-1] for line in (slow, free)] == ["–", "–"]


def test_the_table_says_what_its_columns_are(monkeypatch, capsys):
    """What is measured, beside which model, stands before it; below, each word that the header leaves open."""

    def measured(preset, repeats):
        """Seconds of nothing, beside a guess.

        The guess is the course's.
        """
        yield BenchRow("nothing", (0.2,), predicted=0.1)

    measure(monkeypatch, measured)
    assert cli.main(["bench", "known"]) == 0
    before, _, after = capsys.readouterr().out.partition("what ")
    assert (
        before.splitlines()[1:] == ["", "Seconds of nothing, beside a guess.", "", "The guess is the course's.", ""][1:]
    )
    legend = after.partition("\nnothing")[2]
    assert all(word in legend for word in ("from … to", "times", "predicted", "–", "measured / predicted"))


def test_every_way_to_ask_for_help_names_all_benchmarks(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    helped = capsys.readouterr().out
    assert cli.main(["bench", "nonsense"]) == 2
    refused = capsys.readouterr().err
    assert len(refused.splitlines()) == 1
    for name in bench.BENCHES:
        assert name in helped
        assert name in refused


def test_without_a_name_the_benchmarks_are_listed(capsys):
    assert cli.main(["bench"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [*bench.BENCHES]
    assert all(len(line.split()) > 3 for line in listed)


def test_figures_are_recorded_and_written_as_json(rows, tmp_path):
    assert bench.run("known", json_file=tmp_path / "new" / "b.json") == 0
    kept = list(records.read(tmp_path / "runs" / "records.jsonl"))
    assert [(r["chapter"], r["what"], r["value"], r["unit"]) for r in kept][:1] == [("bench", "quick", 0.2, "s")]
    written = json.loads((tmp_path / "new" / "b.json").read_text())
    assert [row["median"] for row in written["rows"]] == [0.2, 5.0, 1.0]
    assert written["rows"][0]["samples"] == [0.2, 0.1, 0.4]
    assert written["versions"]["torch"]


def test_figures_are_written_where_records_cannot_be(rows, monkeypatch, tmp_path):
    def no_longer(preset, repeats):
        (tmp_path / "runs" / "records.jsonl").mkdir(parents=True)
        yield from rows

    measure(monkeypatch, no_longer)
    with pytest.raises(CourseError):
        bench.run("known", json_file=tmp_path / "b.json")
    assert json.loads((tmp_path / "b.json").read_text())["rows"]


def test_records_that_cannot_be_are_told_before_anything_is_measured(monkeypatch, tmp_path):
    measure(monkeypatch, lambda preset, repeats: pytest.fail("it measured"))
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "records.csv"))
    with pytest.raises(CourseError, match="DLTUTORIAL_RECORDS names"):
        bench.run("known")


def test_earlier_figures_stay_until_there_are_new_ones(rows, monkeypatch, tmp_path):
    bench.run("known", json_file=tmp_path / "b.json")
    bench.run("known", json_file=tmp_path / "b.json")
    before = (tmp_path / "b.json").read_text()
    measure(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run("known", json_file=tmp_path / "b.json")
    assert (tmp_path / "b.json").read_text() == before
    assert not list(tmp_path.glob("*.trial"))


@pytest.mark.parametrize("mine", ["my notes", "{}", b"\xff", None])
@pytest.mark.parametrize("earlier", [False, True])
def test_what_is_saved_at_the_files_place_while_it_measures_stays_and_the_figures_are_recorded(
    rows, monkeypatch, tmp_path, mine, earlier
):
    file = tmp_path / "b.json"
    if earlier:
        bench.run("known", json_file=file)

    def saved_meanwhile(preset, repeats):
        yield from rows
        if mine is None:  # by another program that measures the same
            mate = tmp_path / "mate.json"
            bench.run("other", json_file=mate)
            mate.replace(file)
        else:
            file.write_bytes(mine if isinstance(mine, bytes) else mine.encode())
        kept.append(file.read_bytes())

    kept = []
    measure(monkeypatch, saved_meanwhile)
    monkeypatch.setattr(bench, "BENCHES", ("known", "other"))
    monkeypatch.setattr(benches, "other", lambda preset, repeats: iter(rows), raising=False)
    before = paths.records_file().read_text().count('"bench": "known"') if earlier else 0
    with pytest.raises(
        CourseError, match=r"b\.json was saved just now, and stays; the figures stand above, and in you"
    ):
        bench.run("known", json_file=file)
    assert [file.read_bytes()] == kept
    assert paths.records_file().read_text().count('"bench": "known"') == before + len(rows)


def test_a_table_that_nobody_reads_costs_no_figure(rows, tmp_path):
    """Such as of `dltutorial bench known --json FILE | head -n 1`."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as gone, contextlib.redirect_stdout(gone):
        assert bench.run("known", json_file=tmp_path / "b.json") == 0
    assert len(json.loads((tmp_path / "b.json").read_text())["rows"]) == len(rows)
    assert len([one for one in records.read(paths.records_file()) if one.get("bench") == "known"]) >= len(rows)


def test_what_was_measured_before_a_ctrl_c_is_in_the_records(monkeypatch, tmp_path):
    def measured(preset, repeats):
        yield BenchRow("first", (0.25,))
        raise KeyboardInterrupt

    measure(monkeypatch, measured)
    with pytest.raises(KeyboardInterrupt):
        bench.run("known", json_file=tmp_path / "b.json")
    assert [one["value"] for one in records.read(paths.records_file()) if one["what"] == "first"] == [0.25]
    assert not (tmp_path / "b.json").exists()


@pytest.mark.ci
def test_what_was_measured_before_it_was_ended_is_in_the_records(tmp_path):
    """By a batch system at the end of a job's time, or with the terminal."""
    program = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
from dltutorial.course import bench, benches
def measured(preset, repeats):
    yield bench.BenchRow("first", (0.25,))
    os.kill(os.getpid(), signal.SIG{})
bench.BENCHES, benches.known = ("known",), measured
bench.run("known")
"""
    for name in ("TERM", "HUP", "KILL"):
        assert subprocess.run([sys.executable, "-c", program.format(name)], timeout=250).returncode < 0
    assert [one["value"] for one in records.read(paths.records_file()) if one["what"] == "first"] == [0.25] * 3


def test_a_link_to_earlier_figures_stays_one(rows, tmp_path):
    bench.run("known", json_file=tmp_path / "b.json")
    (tmp_path / "b.json").write_text(before := (tmp_path / "b.json").read_text().replace("quick", "older"))
    (tmp_path / "link.json").symlink_to("b.json")
    bench.run("known", json_file=tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "b.json").read_text() != before


def interrupted(preset, repeats):
    raise KeyboardInterrupt


def test_every_benchmark_named_is_there():
    for name in bench.BENCHES:
        assert callable(getattr(benches, name))


def test_predictions_and_other_columns_show_where_there_are_any():
    text = str(
        table(
            [
                BenchRow("a", (10.0, 20.0, 30.0), "samples/s", predicted=40.0, more={"loss": "0.5"}),
                BenchRow("b", (1.0,)),
            ]
        )
    )
    header, _, first, second = text.splitlines()
    assert header.split() == [
        "what",
        "median",
        "from",
        "…",
        "to",
        "times",
        "predicted",
        "measured",
        "/",
        "predicted",
        "loss",
    ]
    assert first.split()[-4:] == ["40", "samples/s", "0.50", "0.5"]
    assert second.split()[-3:] == ["–", "–", "–"]


def test_a_file_beside_that_for_results_stays(tmp_path):
    (beside := tmp_path / "figures.json.trial").write_text("precious")
    bench._may_be_written(tmp_path / "figures.json", "vit")
    assert [file.name for file in tmp_path.iterdir()] == [beside.name]
    assert beside.read_text() == "precious"


def test_the_list_needs_no_docstrings(monkeypatch, capsys):
    """As of Python without them, -OO."""
    for name in bench.BENCHES:
        monkeypatch.setattr(getattr(benches, name), "__doc__", None)
    assert bench.run() == 0
    assert len(capsys.readouterr().out.splitlines()) == len(bench.BENCHES)
