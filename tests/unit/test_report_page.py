"""The report of what was measured on a machine: ``pages/report.ipynb``."""

from cells import run

from dltutorial import machine
from dltutorial.record import records


def test_the_report_shows_the_newest_records_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path))
    writer = records.Writer("07", "smoke")
    for gain in (2.0, 2.5):
        writer.write("ladder_gain", gain, "×", predicted=2.4)
    writer.write("gain", 3.0, "×", kind="prediction", question="How much?", guess=4.0, touched=True, model=2.4)
    writer.write("It is faster.", False, kind="claim", status="different here", evidence="0.9 ×")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(machine, "label", lambda: "another machine")
        writer.write("another machine's", 1.0, "s")
    names = run(monkeypatch, "report", folders=[str(tmp_path)])
    assert [(r["what"], r["value"]) for r in names["newest"]("measurement")] == [("ladder_gain", 2.5)]
    assert [r["evidence"] for r in names["contradicted"]] == ["0.9 ×"]


def test_the_report_of_a_machine_without_records_says_what_to_run(tmp_path, monkeypatch, capsys):
    run(monkeypatch, "report", folders=[str(tmp_path)])
    assert "Run a chapter first" in capsys.readouterr().out
