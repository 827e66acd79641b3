"""``dltutorial report``: the notebook executed as a learner executes it, and the one page that comes of it."""

import json
import os
import re
import socket
import sys
from pathlib import Path

import nbformat
import pytest
from cells import PAGES
from reportpage import Page, executed, prediction, train_run, undrawn

from dltutorial import cli
from dltutorial.course import report
from dltutorial.errors import CourseError
from dltutorial.record import records


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """An empty runs folder, and a machine that nobody has measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "runs" / "records.jsonl").touch()
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The page of an install on which nothing was measured; no test changes it."""
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "records.jsonl").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("DLTUTORIAL_RUNS", str(folder))
        return executed([folder / "records.jsonl"])


def test_a_fresh_install_gets_a_page_that_invites(fresh):
    page = fresh
    for command in (
        "dltutorial doctor --measure",
        "dltutorial run",
        "make lab",
        "dltutorial train",
        "run 07",
        "run 11",
    ):
        assert command in page.text
    assert "Begin here" in page.text
    assert "not yet recorded" in page.text
    assert len(page.alts) == 5  # published: accelerators, ladders, scaling, accuracy against batch, ResNet-50 records
    assert not [attrs for _, attrs in page.tags if attrs.get("class") == "tiles"]


def test_contents_and_tiles_lead_to_their_sections(runs, monkeypatch):
    records.Writer("07", "smoke").write("ladder_gain", 2.7, "×", predicted=2.5)
    page = undrawn(monkeypatch)
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    anchors = {f"#{attrs['id']}" for tag, attrs in page.tags if tag == "section" and "id" in attrs}
    assert links.count("#ladder") == 3  # contents, tile, summary
    assert set(links) == anchors


def test_sections_stand_in_the_courses_order(fresh):
    found = [attrs["id"] for tag, attrs in fresh.tags if tag == "section" and "id" in attrs]
    assert found == [
        "this-machine", "forecast", "loaders", "knobs", "ladder", "ranks", "scaling", "batch-size", "large-batches",
        "time-to-solution", "predictions", "exercises", "claims", "measurements",
    ]  # fmt: skip


def test_page_needs_nothing_else_and_runs_nothing(runs):
    evil = "<script>alert(1)</script>\"'&$x$"
    writer = records.Writer(evil, evil)
    writer.write(evil, True, evil, kind="claim", status=evil, evidence=evil, needs=evil)
    writer.write(**prediction("a", 1.0, 2.0, 3.0) | {"what": evil, "question": evil, "unit": evil})
    writer.write(evil, evil, kind="check", status=evil, cases_passed=evil, cases=evil)
    writer.write(evil, evil, evil)
    records.Writer("07", evil).write("ladder_gain", 2.0, evil, gains={"baseline": 1, f"only {evil}": 2}, told={})
    records.Writer("09", evil).write("ddp_step_s", 2.0, evil, wrapper=evil, world_size=evil)
    records.Writer("11", evil).write("timed step", 2.0, evil, arm=evil, ranks=1)
    records.Writer("11", evil).write("timed step", 2.0, evil, arm=evil, ranks=2)
    records.Writer("14", evil).write("optimizer race", 2.0, evil, scores={evil: [0.5]})
    train_run(runs / "$evil_{run$", [0.5], status=evil)
    page = executed()
    assert "<script" not in page.source
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "foreignobject", "b><script>"}
    for tag, attrs in page.tags:
        assert not any("http" in value or name.startswith("on") for name, value in attrs.items() if value), (tag, attrs)
        assert tag != "svg" or (attrs["role"] == "img" and attrs["aria-label"])
    assert "default-src 'none'" in page.source
    assert "@import" not in page.source
    assert {"name": "generator", "content": "dltutorial report"} in [attrs for tag, attrs in page.tags if tag == "meta"]


@pytest.mark.ci
def test_charts_are_part_of_the_page_and_of_its_theme(fresh):
    page = fresh
    assert not set(re.findall(r'style="[^"]*?: (#[0-9a-f]{6})', page.source))  # colours are the page's variables
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert "<metadata" not in page.source
    assert len(page.source) < 2e6


def test_no_path_and_no_host_leave_the_machine(runs, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "cn0042")
    writer = records.Writer("01", "smoke")
    evidence = f"saved in {Path.home()}/runs/x/best.pt on cn0042, 3 samples/s, arXiv:1811.05233/v1"
    writer.write("it is saved", True, kind="claim", status="shown", evidence=evidence)
    writer.write("odd", {"in": ["/data/of/someone/x"]})
    page = undrawn(monkeypatch)
    assert "saved in …/best.pt on this host, 3 samples/s, arXiv:1811.05233/v1" in page.text
    assert "someone" not in page.source


def test_machines_and_presets_are_kept_apart(runs, monkeypatch):
    lines = []
    for machine, preset, gain in (("a CPU", "smoke", 2.0), ("a GPU", "gpu", 6.0), ("a CPU", "laptop", 3.0)):
        writer = records.Writer("07", preset)
        writer.write("ladder_gain", gain, "×")
        writer.write("loss falls", True, kind="claim", status="shown", evidence=f"{gain}")
        lines += [dict(json.loads(line), machine=machine) for line in _pop(runs)]
    (runs / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = undrawn(monkeypatch)
    assert "What was measured on a CPU and a GPU" in page.text
    for words in ("a CPU, preset smoke, chapter 07: 2.0 ×", "a GPU, preset gpu, chapter 07: 6.0 ×"):
        assert words in page.section("ladder")
    assert "here (a GPU, preset gpu): 6.0 in all" in page.alt("Times as fast as the first row")
    assert "3 of 3 claims hold here" in page.text
    assert "All 1 claims on a GPU, preset gpu" in page.text


def _pop(runs):
    lines = (runs / "records.jsonl").read_text().splitlines()
    (runs / "records.jsonl").write_text("")
    return lines


@pytest.mark.ci
def test_odd_values_do_not_stop_it(runs):
    odd = (None, True, float("nan"), [1, 2], {"a": 1}, "wor\ud800ds", 10**30, 10**400, 1e-310, 1e150, -1, 0)
    for value in odd:
        for chapter, what in (
            ("00", "peak matmul fp32"), ("03", "loader: a"), ("05", "compile_gain_stencil"), ("07", "ladder_gain"),
            ("09", "ddp_step_s"), ("11", "timed step"), ("11", "simulated step"), ("11", "published runs within"),
            ("12", "steps against batch"), ("13", "simple_noise_scale"), ("14", "optimizer race"),
            ("15", "median seconds: x"), ("bench", "baseline"), ("bench", "real training, ranks: 2"),
        ):  # fmt: skip
            writer = records.Writer(chapter, "smoke")
            writer.write(what, value, gains=value, told=value, predicted=value, arm="x", ranks=value,
                         step_s=value, s_min=value, steps=value, survey=value, scores=value, bench="ladder",
                         wrapper=value)  # fmt: skip
        writer = records.Writer("00", "smoke")
        writer.write("odd claim", value, kind="claim", status=value, needs=value)
        writer.write("odd guess", value, kind="prediction", guess=value, ratio=value, model=value, measured=value,
                     touched=value)  # fmt: skip
        writer.write("odd check", value, kind="check", status=value, cases=value)
    executed()


@pytest.mark.ci
def test_other_files_and_another_place(runs, tmp_path, capsys):
    other = tmp_path / "elsewhere" / "other.jsonl"
    records.Writer("03", "gpu", other).write("quick_loader", 5.0, "samples/s")
    train_run(other.parent / "theirs", [0.4])
    train_run(runs / "mine", [0.3])
    assert cli.main(["report", str(other), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new" / "page.html")
    page = Page((tmp_path / "new" / "page.html").read_text(encoding="utf-8"))
    assert "quick_loader" in page.text
    assert "has 0.40 of persistence's error" in page.text
    assert "mine" not in page.section("forecast")


@pytest.mark.parametrize(
    "content", [None, b"no json\n{}\n", b"3\n\n", b"{}\n\n", b"\xff\xfe\x00\n", b'{"time": 3}\n\n']
)
def test_missing_or_damaged_records_are_one_line(tmp_path, monkeypatch, content):
    file = tmp_path / "records.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CourseError) as error:
        undrawn(monkeypatch, [file])
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"value": ' + "7" * 5000 + "}", "\0" * 99], ids=["[", "7", "NUL"])
def test_what_no_parser_reads_is_passed_over_and_spoils_no_page(runs, monkeypatch, line):
    for name in ("before_it", "behind_it"):
        records.Writer("00", "smoke").write(name, 1.0)
        with open(runs / "records.jsonl", "a") as file:
            file.write(f"{line}\n")
    page = undrawn(monkeypatch)
    assert "before_it" in page.text and "behind_it" in page.text


@pytest.mark.ci
def test_the_command_says_which_line_was_passed_over(runs, capsys):
    records.Writer("00", "smoke").write("whole", 1.0)
    file = runs / "records.jsonl"
    file.write_text('{"time": "20\n' + file.read_text())
    assert cli.main(["report"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"dltutorial: {file}, line 1 cannot be read, so passed over (1 such)"


def test_lists_nested_hundreds_deep_are_one_line(runs, monkeypatch):
    good = records.Writer("00", "smoke").write("whole", 1.0)
    line = json.dumps(good | {"value": "deep"}).replace('"deep"', "[" * 700 + "]" * 700)
    (runs / "records.jsonl").write_text(f"{line}\n")
    before = sys.getrecursionlimit()  # torch's compiler raises it
    sys.setrecursionlimit(1000)
    try:
        with pytest.raises(CourseError, match="nested hundreds deep; remove its line"):
            undrawn(monkeypatch)
    finally:
        sys.setrecursionlimit(before)


def test_a_run_whose_files_cannot_be_read_is_passed_over(runs, monkeypatch):
    train_run(runs / "good", [0.4])
    for name, damage in {"pipe": os.mkfifo, "deep": lambda file: file.write_text("[" * 99_999 + "\n")}.items():
        for file in ("progress.jsonl", "status.json"):
            train_run(runs / f"{name} {file[0]}", [0.4])
            (runs / f"{name} {file[0]}" / file).unlink()
            damage(runs / f"{name} {file[0]}" / file)
    assert "1 of 1 run ends" in undrawn(monkeypatch).source


def test_the_command_says_that_line_and_writes_nothing(tmp_path, capsys):
    missing = tmp_path / "none.jsonl"
    assert cli.main(["report", str(missing), "--out", str(tmp_path / "report.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dltutorial: cannot read records {missing}")
    assert not (tmp_path / "report.html").exists()


def test_a_last_line_cut_short_is_passed_over(tmp_path, monkeypatch):
    file = tmp_path / "records.jsonl"
    records.Writer("00", "smoke", file).write("whole", 1.0)
    with file.open("a") as lines:
        lines.write('{"time": "2026')
    assert "whole" in undrawn(monkeypatch, [file]).text


def test_what_a_learner_adds_to_the_notebook_is_on_the_page_and_a_mistake_is_one_line(runs, monkeypatch):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("files = []", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_markdown_cell("# My own page"),
        nbformat.v4.new_code_cell("import sys\nprint('a place', file=sys.stderr)\n1 + 1"),
        nbformat.v4.new_code_cell("from IPython.display import HTML\nHTML('half a\\rline')"),
    ]
    (runs / "pages").mkdir()
    monkeypatch.setattr(report.paths, "course_folder", lambda holding: runs)
    (runs / "pages" / "report.css").write_bytes((PAGES / "report.css").read_bytes())
    nbformat.write(notebook, runs / "pages" / "report.ipynb")
    page = executed()
    assert "<title>My own page" in page.source
    assert "2" in page.words
    assert "sys.stderr" not in page.source and "a place" not in page.source
    executed()
    assert not list(runs.glob("report.mine*.html"))  # a page that nobody has edited, whatever stands in it
    notebook.cells[2].source = "1 / 0"
    nbformat.write(notebook, runs / "pages" / "report.ipynb")
    with pytest.raises(CourseError, match=r"report.ipynb, cell 3: ZeroDivisionError: .*; mend the notebook"):
        executed()


def test_the_notebooks_are_clean_and_no_chapters():
    for file in PAGES.glob("*.ipynb"):
        notebook = nbformat.read(file, 4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code), file.name
        assert sum("parameters" in cell.metadata.get("tags", ()) for cell in code) == 1
        assert not re.match(r"\d\d_", file.name)


@pytest.mark.ci
def test_a_page_that_was_edited_is_kept(runs, capsys):
    page = runs / "report.html"
    for _ in range(2):  # one that nobody has edited is replaced
        assert cli.main(["report"]) == 0
    edited = page.read_text().replace("</body>", "<p>what I conclude</p></body>")
    page.write_text(edited)
    assert cli.main(["report"]) == 0
    assert "the page that you have edited is now report.mine1.html" in capsys.readouterr().out
    assert "what I conclude" not in page.read_text()
    assert [other.read_text() for other in runs.glob("report.mine*.html")] == [edited]


@pytest.mark.ci
def test_a_link_stays_one_and_its_page_becomes_new(runs, capsys):
    (runs / "link.html").symlink_to("published.html")
    for _ in range(2):  # at first it leads nowhere
        assert cli.main(["report", "--out", str(runs / "link.html")]) == 0
        assert capsys.readouterr().out == f"{runs / 'link.html'}\n"
        assert (runs / "link.html").is_symlink()
        assert "<section" in (runs / "published.html").read_text()
        (runs / "published.html").write_text((runs / "published.html").read_text())
    (runs / "published.html").write_text(edited := (runs / "published.html").read_text() + "what I conclude")
    assert cli.main(["report", "--out", str(runs / "link.html")]) == 0
    assert "the page that you have edited is now published.mine1.html" in capsys.readouterr().out
    assert (runs / "published.mine1.html").read_text() == edited


def test_a_link_that_leads_round_is_one_line_and_stays(runs, capsys):
    (runs / "round.html").symlink_to("again.html")
    (runs / "again.html").symlink_to("round.html")
    assert cli.main(["report", "--out", str(runs / "round.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "round.html is a link that leads round" in line
    assert (runs / "round.html").is_symlink()


def saved_as_it_goes_to_disk(monkeypatch, file, text):
    """Somebody saves ``file`` in the moment in which its newer version, written beside, goes to disk."""
    fsync = os.fsync

    def save(number):
        file.write_text(text)
        fsync(number)

    monkeypatch.setattr(os, "fsync", save)


@pytest.mark.ci
def test_a_page_that_is_saved_while_it_is_written_anew_stays(runs, monkeypatch, capsys):
    page = runs / "report.html"
    assert cli.main(["report"]) == 0
    with monkeypatch.context() as patch:
        saved_as_it_goes_to_disk(patch, page, "what I conclude")
        assert cli.main(["report"]) == 2
    assert "report.html was saved just now, and stays; run this again" in capsys.readouterr().err
    assert page.read_text() == "what I conclude"


@pytest.mark.ci
@pytest.mark.parametrize("content", [b"my notes", b"\xff\xfe"])
def test_what_comes_to_the_pages_place_while_the_notebook_runs_is_kept(runs, monkeypatch, content):
    plain = report._page

    def page(*words):
        (runs / "report.html").write_bytes(content)
        return plain(*words)

    monkeypatch.setattr(report, "_page", page)
    assert cli.main(["report"]) == 0
    assert [other.read_bytes() for other in runs.glob("report.mine*.html")] == [content]
