import dataclasses
import html.parser
import json

import pytest

from dltutorial import cli, peaks
from dltutorial.errors import CourseError
from dltutorial.observe import records
from dltutorial.probes import Figure
from dltutorial.teach import report, report_figures


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text, of a page."""

    def __init__(self, file):
        super().__init__()
        self.tags, self.words, self.source = [], [], file.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(autouse=True)
def no_peaks(monkeypatch):
    monkeypatch.setattr(peaks, "load", lambda folder=None: None)


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "records.jsonl").touch()
    return tmp_path / "runs"


def prediction(name, guess, model, measured, touched=True):
    return {"what": name, "value": measured, "unit": "s", "kind": "prediction", "question": f"How long is {name}?",
            "measured": measured, "guess": guess, "touched": touched, "ratio": guess / measured, "model": model,
            "model_ratio": model / measured}  # fmt: skip


def train_run(folder, ratios, status="finished"):
    folder.mkdir()
    (folder / "status.json").write_text(json.dumps({"status": status}))
    lines = [
        {"step": 10 * i, "samples_per_s": 98.7, "scores": {report_figures.RATIO: ratio} if ratio else {}}
        for i, ratio in enumerate(ratios, 1)
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def written():
    return Page(report.write([]))


def test_nothing_recorded_says_what_to_run(runs):
    page = written()
    for command in ("dltutorial doctor --measure", "dltutorial run", "make lab", "dltutorial train"):
        assert command in page.text
    assert "not yet recorded" in page.text
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 1  # the published ladders


def test_latest_claim_counts_and_says_how_often_it_held(runs):
    writer = records.Writer("01", "smoke")
    for holds in (True, False, True):
        writer.write("loss falls", holds, kind="claim", status="shown" if holds else "failed", evidence="1 → 0.3")
    writer.write("tensor cores win", None, kind="claim", status="not shown here", needs="a CUDA device")
    page = written()
    assert "1 of 2 claims hold here, 1 not shown here" in page.text
    assert "2 of 3" in page.text
    assert "a CUDA device" in page.text


def test_predictions_are_scored_in_factors(runs):
    writer = records.Writer("00", "smoke")
    for row in (prediction("copy", 4.0, 1.1, 2.0), prediction("step", 0.1, 0.5, 0.4), prediction("x", 9, 1, 1, False)):
        writer.write(**row)
    page = written()
    assert "Your guesses are off by 3 × in the median" in page.text  # factors 2 and 4; the default does not count
    assert "How long is copy?" in page.text
    assert "9 (default)" in page.text


def test_exercises_show_their_last_outcome(runs):
    writer = records.Writer("01", "smoke")
    for status, cases in (("not attempted", 0), ("wrong", 2), ("passed", 6)):
        writer.write("train_step", kind="check", status=status, cases_passed=cases, cases=6)
    page = written()
    assert "1 of 1 exercises solved" in page.text
    assert "6 of 6 2" in page.text  # checked twice: a blank is no attempt


def test_runs_are_drawn_with_their_last_ratio(runs):
    train_run(runs / "good", [None, 0.9, 0.5])
    train_run(runs / "cut", [0.8, 0.75], status="interrupted")
    train_run(runs / "silent", [None])
    (runs / "good" / "progress.jsonl").open("a").write('{"step": 40, "sco')  # being written
    page = written()
    assert "The best forecast has 0.50 of persistence's error" in page.text
    assert "– interrupted" in page.text
    assert "silent" not in page.text
    (alt,) = [attrs["alt"] for tag, attrs in page.tags if tag == "img" and "Validation error" in attrs["alt"]]
    assert "good 0.50" in alt


def test_cached_peaks_become_a_roofline(runs, monkeypatch):
    figures = {
        "machine": "a test", "device": "cpu", "threads": 2, "time": "2026-01-02",
        "matmul": {"fp32": Figure(2e11, 1.9e11, 5, "FLOP/s", "256 × 256"), "bf16": None},
        "memory": Figure(2e10, 1.8e10, 5, "bytes/s", "a copy"), "disk": {"cold_sequential": None},
    }  # fmt: skip
    others = {field.name: None for field in dataclasses.fields(peaks.Peaks)}
    known = peaks.Peaks(**others | figures)
    monkeypatch.setattr(peaks, "load", lambda folder=None: known)
    page = written()
    assert "Products reach 200 GFLOP/s in fp32, copies 20 GB/s" in page.text
    assert "matmul bf16 not available" in page.text
    assert any("Roofline" in attrs["alt"] for tag, attrs in page.tags if tag == "img")


def test_page_needs_nothing_else_and_runs_nothing(runs):
    evil = "<script>alert(1)</script>\"'&$x$"
    writer = records.Writer(evil, evil)
    writer.write(evil, True, evil, kind="claim", status=evil, evidence=evil, needs=evil)
    writer.write(**prediction("a", 1.0, 2.0, 3.0) | {"what": evil, "question": evil, "unit": evil})
    writer.write(evil, evil, kind="check", status=evil, cases_passed=evil, cases=evil)
    writer.write(evil, evil, evil)
    train_run(runs / "$evil_{run$", [0.5], status=evil)
    page = written()
    assert "<script" not in page.source
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "object", "b><script>")]
    for tag, attrs in page.tags:
        assert not any(value.startswith("http") for value in attrs.values() if value), (tag, attrs)
        assert tag != "img" or (attrs["src"].startswith("data:image/png;base64,") and attrs["alt"])


def test_odd_values_do_not_stop_it(runs):
    writer = records.Writer("00", "smoke")
    for value in (None, True, float("nan"), [1, 2], {"a": 1}, "words", 10**30):
        writer.write("odd", value)
        writer.write("odd claim", value, kind="claim", status=value)
        writer.write("odd guess", value, kind="prediction", guess=value, ratio=value, model=value, measured=value)
        written()


def test_other_files_and_another_place(runs, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    records.Writer("03", "gpu", other).write("quick_loader", 5.0, "samples/s")
    assert cli.main(["report", str(other), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new" / "page.html")
    assert "quick_loader" in (tmp_path / "new" / "page.html").read_text()


@pytest.mark.parametrize(
    "content", [None, b"no json\n{}\n", b"3\n\n", b"{}\n\n", b"\xff\xfe\x00\n", b'{"time": 3}\n\n']
)
def test_missing_or_damaged_records_are_one_line(tmp_path, content):
    file = tmp_path / "records.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CourseError) as error:
        report.write([file], tmp_path / "report.html")
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_a_last_line_cut_short_is_passed_over(tmp_path):
    file = tmp_path / "records.jsonl"
    records.Writer("00", "smoke", file).write("whole", 1.0)
    with file.open("a") as lines:
        lines.write('{"time": "2026')
    assert "whole" in Page(report.write([file], tmp_path / "report.html")).text


def test_published_ladders_are_those_of_the_literature():
    gains = report_figures.ladder_gains()
    ends = {year: round(list(steps.values())[-1], 1) for year, steps in gains.items()}
    assert ends == {"sc21": 6.3, "sc22": 9.2, "sc23": 4.6, "sc24": 6.2, "sc25": 7.0}


def test_what_the_ladders_title_says_is_so():
    """The U-Net (SC21, SC22) gains most from input, the ViT (SC23 to SC25) from half precision."""
    for year, gains in report_figures.ladder_gains().items():
        input_gain, half_gain = gains["DALI"], gains["half precision"] / gains["DALI"]
        assert (input_gain > half_gain) == (year in ("sc21", "sc22"))


# What this machine measured


def test_loaders_of_chapter_03_are_compared_with_the_first(runs):
    writer = records.Writer("03", "smoke")
    for what, value in (
        ("loader: naive", 20.0),
        ("loader: map", 500.0),
        ("loader: best", 400.0),
        ("loader: copy", 600),
    ):
        writer.write(what, value, "samples/s")
    page = written()
    assert "The best loader is 25 × as fast as the naive one" in page.text
    assert any("naive 20, map 500, best 400" in attrs["alt"] for tag, attrs in page.tags if tag == "img")


def test_the_ladder_of_this_machine_stands_beside_the_published_ones(runs):
    records.Writer("07", "smoke").write("ladder_gain", 2.7, "×", predicted=2.5)
    assert "own ladder: 2.7 × from baseline to best, 2.5 × predicted (chapter 07, preset smoke)" in written().text


def test_a_benchmark_shows_its_newest_medians_beside_predictions(runs):
    writer = records.Writer("bench", "smoke")
    for median in (9.0, 0.3):
        writer.write("update", median, "s", bench="precision", predicted=0.2)
    writer.write("odd", None, "s", bench="precision")
    page = written()
    assert "update 300 ms 200 ms 1.50" in page.text
    assert "odd" not in page.text.partition("Benchmarks")[2]


def test_a_claim_that_was_shown_needs_nothing_more(runs):
    writer = records.Writer("05", "smoke")
    for status in ("shown", "not shown here"):
        writer.write(status, kind="claim", status=status, evidence="seen", needs="a compiler")
    assert written().text.count("a compiler") == 1
