import math

import numpy as np
import pytest
import torch

from dltutorial.course import Chapter, show
from dltutorial.errors import CourseError, RecipeError
from dltutorial.record import records


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "records"))
    return Chapter("07", "smoke")


def written(tmp_path):
    return list(records.read(tmp_path / "records"))


def test_a_chapter_prints_its_environment_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DLTUTORIAL_RECORDS", str(tmp_path / "records"))
    Chapter("07", "smoke").claim("a", None, "", needs="b")
    out = capsys.readouterr().out
    assert out.count("chapter 07 · preset smoke · machine ") == 1
    assert "torch" in out


def test_an_unknown_preset_is_an_error():
    with pytest.raises(RecipeError):
        Chapter("07", "nonsense")


@pytest.mark.parametrize("holds", [True, np.bool_(True), torch.tensor(True), np.array(True)])
def test_a_claim_that_holds_is_shown_with_its_evidence_and_recorded(chapter, tmp_path, capsys, holds):
    chapter.claim("a is less than b", holds, "1 s < 2 s")
    assert "✓ a is less than b\n    1 s < 2 s" in capsys.readouterr().out
    (record,) = written(tmp_path)
    assert (record["kind"], record["chapter"], record["preset"]) == ("claim", "07", "smoke")
    assert (record["what"], record["value"], record["status"]) == ("a is less than b", True, "shown")
    assert record["evidence"] == "1 s < 2 s"


@pytest.mark.parametrize(
    ("measured", "status", "sign"),
    [(False, "failed", "✗ (failed)"), (True, "different here", "≠ (different here)")],
)
def test_a_claim_that_does_not_hold_is_shown_and_recorded_and_ends_nothing(
    chapter, tmp_path, capsys, measured, status, sign
):
    chapter.claim("a < b", np.bool_(False), "2 > 1", measured=measured)
    assert f"{sign} a < b\n    2 > 1" in (out := capsys.readouterr().out)
    assert ("another machine" in out) == measured
    (record,) = written(tmp_path)
    assert (record["value"], record["status"], record["measured"]) == (False, status, measured)


@pytest.mark.parametrize("holds", [math.nan, np.float64("nan"), 1, "yes", [1], np.array([True, True])])
def test_what_is_no_truth_value_is_an_error_and_not_a_claim(chapter, tmp_path, holds):
    with pytest.raises(CourseError, match="truth value"):
        chapter.claim("a < b", holds, "?")
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("holds", [None, [], ()])
def test_a_claim_without_values_fails(chapter, tmp_path, capsys, holds):
    chapter.claim("every rank has the sum", holds, "", measured=True)
    assert "There is no value behind this claim" in capsys.readouterr().out
    (record,) = written(tmp_path)
    assert (record["value"], record["status"]) == (False, "failed")


@pytest.mark.parametrize(("holds", "status"), [([True, np.bool_(True)], "shown"), ([True, False], "failed")])
def test_a_claim_about_several_values_holds_if_all_are_true(chapter, tmp_path, holds, status):
    chapter.claim("every rank has the sum", holds, "sums 10 and 10")
    assert written(tmp_path)[0]["status"] == status


def test_what_this_machine_cannot_show_is_never_recorded_as_passed(chapter, tmp_path, capsys):
    chapter.claim("graphs are quicker", None, "recorded: 2.1 ×", needs="a CUDA device")
    chapter.claim("so is bf16", None, "recorded: 1.9 ×", needs="tensor cores")
    assert [(r["value"], r["status"], r["needs"]) for r in written(tmp_path)] == [
        (None, "not shown here", "a CUDA device"),
        (None, "not shown here", "tensor cores"),
    ]
    assert "This needs a CUDA device." in (out := capsys.readouterr().out)
    assert "✓" not in out


def test_a_prediction_is_scored_against_measurement_and_model(chapter, tmp_path, capsys):
    guess = chapter.predict("speed", "How fast?", "GFLOP/s", default=50, model=80)
    asked = capsys.readouterr().out
    assert "How fast? · guess 50 GFLOP/s" in asked
    assert "80" not in asked  # the model's answer would spoil the learner's
    guess.score(torch.tensor(100.0))
    assert "The default guess is 2 × too low; the model is 1.25 × too low" in capsys.readouterr().out
    (record,) = written(tmp_path)
    assert (record["what"], record["kind"], record["unit"]) == ("speed", "prediction", "GFLOP/s")
    assert (record["guess"], record["model"], record["value"]) == (50.0, 80.0, 100.0)
    assert (record["model_ratio"], record["touched"]) == (0.8, False)


def test_a_learners_own_guess_survives_running_the_cell_again(chapter, tmp_path):
    chapter.predict("speed", "How fast?", "s", default=50)._field.value = 60.0
    again = chapter.predict("speed", "How fast?", "s", default=50)
    assert (again.value, again.touched) == (60.0, True)
    again.score(60)
    assert written(tmp_path)[0]["touched"] is True


@pytest.mark.parametrize("measured", [0.0, -1.0, math.nan, math.inf])
def test_a_measurement_without_a_ratio_gets_one_line(chapter, tmp_path, capsys, measured):
    chapter.predict("speed", "How fast?", "s", default=50).score(measured)
    assert "nothing to compare" in capsys.readouterr().out
    assert len(written(tmp_path)) == 1


def test_a_guess_of_zero_gets_one_line(chapter, capsys):
    guess = chapter.predict("speed", "How fast?", "s", default=50)
    guess._field.value = 0.0
    guess.score(2.0)
    assert "cannot be scored" in capsys.readouterr().out


@pytest.mark.parametrize("model", [math.nan, -1.0, 0.0, np.inf])
def test_a_model_that_gives_no_positive_number_on_this_machine_is_left_out(chapter, tmp_path, capsys, model):
    chapter.predict("speed", "How fast?", "s", 1, model=model).score(2.0)
    assert "The default guess is 2 × too low." in capsys.readouterr().out
    assert written(tmp_path)[0]["model_ratio"] is None


def test_the_picture_of_a_score_reads_without_colour_and_aloud():
    shown = show.log_bars("Too <high>", [("guess", 3e-9), ("model", 1.0), ("measured", 2e12)], "s")
    assert shown.html.count("border:2px solid") == 3
    assert all(label in shown.html for label in (">guess<", ">model<", ">measured<"))
    assert shown.html.count("background:none") == 2  # what is solid was measured
    assert 'role="img" aria-label="Too &lt;high&gt;"' in shown.html
    assert "<high>" not in shown.html


def test_a_record_goes_to_the_records_file(chapter, tmp_path):
    chapter.record("matmul", np.float32(2.5), "GFLOP/s", dtype="float32")
    (record,) = written(tmp_path)
    assert (record["what"], record["value"], record["dtype"]) == ("matmul", 2.5, "float32")
