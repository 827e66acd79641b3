import pytest
import torch

from dltutorial.data import surveys

SIZES = {"train": 40, "valid": 12, "test": 8}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path / "data"))


def test_parts_have_their_sizes_and_the_first_has_mean_0_and_deviation_1():
    survey = surveys.lenses(seed=3, **SIZES, progress=False)
    assert [len(x) for x in (survey.x_train, survey.x_valid, survey.x_test)] == [40, 12, 8]
    assert survey.n_features == 256 and survey.n_classes == 2 and len(survey) == 40
    assert survey.x_train.dtype == torch.float32 and survey.y_test.dtype == torch.int64
    assert survey.x_train.mean().abs() < 1e-5 and survey.x_train.std() == pytest.approx(1, abs=1e-5)


def test_a_survey_is_simulated_once_and_then_read(monkeypatch):
    first = surveys.lenses(**SIZES, progress=False)
    monkeypatch.setattr(surveys.simulated, "simulate", lambda *a, **k: pytest.fail("simulated again"))
    again = surveys.lenses(**SIZES, progress=False)
    assert torch.equal(first.x_valid, again.x_valid) and torch.equal(first.y_train, again.y_train)


def test_digits_are_real_and_split_by_the_seed():
    first, other = surveys.digits(seed=0), surveys.digits(seed=1)
    assert first.n_classes == 10 and first.n_features == 64
    assert [len(y) for y in (first.y_train, first.y_valid, first.y_test)] == [997, 400, 400]
    assert not torch.equal(first.y_valid, other.y_valid)
    assert torch.equal(first.x_train, surveys.digits(seed=0).x_train)
