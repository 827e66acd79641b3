import numpy as np
import pytest

from dltutorial.errors import CourseError
from dltutorial.record import plots
from dltutorial.scaling import laws, performance_model

RANKS = np.array([1, 2, 4, 8, 16])


def test_amdahl_at_its_limits():
    assert laws.amdahl(RANKS, 0.0) == pytest.approx(RANKS)
    assert laws.amdahl(RANKS, 1.0) == pytest.approx(np.ones(5))
    assert laws.amdahl(1e12, 0.05) == pytest.approx(20)


def test_gustafson_at_its_limits():
    assert laws.gustafson(RANKS, 0.0) == pytest.approx(RANKS)
    assert laws.gustafson(RANKS, 1.0) == pytest.approx(np.ones(5))
    assert laws.gustafson(1000, 0.05) == pytest.approx(0.05 + 0.95 * 1000)


def test_efficiencies_are_one_when_scaling_is_perfect():
    assert laws.strong_efficiency(8 / RANKS, RANKS, 8.0) == pytest.approx(np.ones(5))
    assert laws.weak_efficiency(np.full(5, 8.0), 8.0) == pytest.approx(np.ones(5))
    assert laws.strong_efficiency(8.0, 4, 8.0) == pytest.approx(0.25)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.4, 1.0])
def test_fits_find_the_share_that_was_planted(share):
    strong = laws.fit_amdahl(RANKS, 3.0 / laws.amdahl(RANKS, share))
    weak = laws.fit_gustafson(RANKS, 3.0 * RANKS / laws.gustafson(RANKS, share))
    assert strong == pytest.approx((share, 0), abs=1e-9)
    assert weak == pytest.approx((share, 0), abs=1e-9)


def test_a_fit_keeps_residuals_of_what_is_no_such_law():
    _, rms = laws.fit_amdahl([1, 2, 4, 8], [1.0, 0.5, 0.4, 0.5])
    assert rms > 0.05


@pytest.mark.parametrize(("ranks", "times"), [([2, 4], [1, 1]), ([1], [1])])
def test_what_cannot_be_fitted_is_told(ranks, times):
    with pytest.raises(CourseError, match="rank"):
        laws.fit_amdahl(ranks, times)


def test_the_two_metrics_of_mlperf_hpc():
    assert laws.time_to_train_s(1000, 0.5, before_s=60) == 560
    assert laws.models_per_hour(100, 8, 1800) == 24  # 12 models of half an hour, 4 GPUs idle


def test_the_mean_of_the_largest_is_the_known_one():
    assert laws.expected_max(1) == pytest.approx(0, abs=1e-9)
    assert laws.expected_max(2) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-6)
    assert laws.expected_max(3) == pytest.approx(1.5 / np.sqrt(np.pi), abs=1e-6)
    harmonic = np.sum(1 / np.arange(1, 1001))
    assert laws.expected_max(1000, "exponential") == pytest.approx(harmonic - 1, rel=1e-6)
    assert laws.expected_max([1, 5], "exponential") == pytest.approx([0, 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5])


@pytest.mark.parametrize("ranks", [2, 17, 400])
@pytest.mark.parametrize("shape", laws.SHAPES)
def test_the_mean_of_the_largest_equals_monte_carlo(ranks, shape):
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((4000, ranks)) if shape == "normal" else rng.exponential(size=(4000, ranks)) - 1
    largest = drawn.max(1)
    error = 4 * largest.std() / np.sqrt(len(largest))
    assert laws.expected_max(ranks, shape) == pytest.approx(largest.mean(), abs=error)


def test_the_slowest_of_more_is_slower():
    for shape in laws.SHAPES:
        assert (np.diff(laws.expected_max(np.arange(1, 3000), shape)) > 0).all()


FACTORS = ["architecture", "workload", "size_gb", "smt"]


def test_regression_finds_planted_factors():
    rows = [{"a": a, "b": b, "t": str(2.0 * {"x": 1, "y": 3}[a] * {"u": 1, "v": 0.5}[b])} for a in "xy" for b in "uv"]
    model = performance_model.fit(rows, "t", ["a", "b"])
    assert model.base_s == pytest.approx(2)
    assert model.factors == {"a": pytest.approx({"x": 1, "y": 3}), "b": pytest.approx({"u": 1, "v": 0.5})}
    assert model.r2 == pytest.approx(1)


def test_the_published_summit_table_gives_the_published_factor_of_two():
    model = performance_model.fit(plots.reference("summit_bdas_walltimes"), "wall_s", FACTORS)
    assert 1.8 < model.factors["architecture"]["POWER8"] < 2.2
    assert 7 < model.factors["size_gb"]["64"] < 9
    assert 0.95 < model.r2 < 1
    assert np.mean(model.residuals) == pytest.approx(0, abs=1e-9)


def test_a_regression_that_has_no_answer_is_told():
    rows = [{"a": "x", "b": "u", "t": "1"}, {"a": "y", "b": "v", "t": "2"}] * 3
    with pytest.raises(ValueError, match="cannot tell 3 parameters apart"):
        performance_model.fit(rows, "t", ["a", "b"])
