"""``pages/class.ipynb``, a notebook for instructors, reads the records that learners share."""

from cells import run

from dltutorial.record import records


def test_it_counts_attempts_hints_and_contradicted_claims_of_each_learner(tmp_path, monkeypatch):
    writer = records.Writer("08", "smoke")
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "ann"))
    for status, hint in (("not attempted", ""), ("wrong", "Sum over ranks."), ("passed", "")):
        writer.write("ring", kind="check", status=status, hint=hint, failed="two ranks")
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "bob"))
    writer.write("ring", kind="check", status="wrong", hint="", failed="two ranks")
    writer.write("It is faster.", False, kind="claim", status="different here")
    names = run(monkeypatch, "class", folder=str(tmp_path))
    assert [names["progress"](learner, "08 ring") for learner in ("ann", "bob")] == ["passed / 2", "trying / 1"]
    no_hint = "no hint; the case that fails is: two ranks"
    assert names["hints"] == {("08 ring", "Sum over ranks."): 1, ("08 ring", no_hint): 1}
    assert names["claims"] == {("08", "It is faster.", "different here"): {"bob"}}
