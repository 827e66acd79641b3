import dataclasses
import math

import clouds
import numpy as np
import pytest

from dltutorial.convergence import ensemble, sweep
from dltutorial.convergence.sweep import Sweep, SweepPoint

SEEDS = tuple(range(50, 55))


@pytest.fixture(scope="module")
def survey():
    return clouds.survey(n=300, n_valid=200, n_features=12, n_classes=3, apart=1.5)


@pytest.fixture(scope="module")
def found(survey):
    return swept(survey, [4, 16, 64])


def swept(survey, sizes, target=0.9):
    return sweep.sweep(survey, sizes, target, seeds=SEEDS, tuning_seeds=(0, 1, 2))


def test_larger_batches_need_fewer_updates_and_no_seed_is_dropped(found):
    assert [point.batch_size for point in found.points] == [4, 16, 64] and found.steps_PS.shape == (3, 5)
    medians = [point.median for point in found.points]
    assert medians == sorted(medians, reverse=True) and all(point.reached == 5 for point in found.points)


def test_the_best_rate_has_the_fastest_slowest_seed_and_is_not_at_the_edge(found):
    for point in found.points:
        slowest_L = np.nan_to_num(point.tuning_steps_LS, nan=np.inf).max(1)
        assert point.best_rate == point.rates[int(slowest_L.argmin())]
        assert point.at_edge == (point.best_rate in (point.rates[0], point.rates[-1]))
        ratios = np.array(point.rates[1:]) / np.array(point.rates[:-1])
        assert (ratios == 2).all()
    assert not any(point.at_edge for point in found.points)


def test_the_other_seeds_train_at_the_best_rate_and_are_evaluated_on_the_other_half(survey, found):
    point = found.points[1]
    half = dataclasses.replace(survey, x_valid=survey.x_valid[100:], y_valid=survey.y_valid[100:])
    replicas = [ensemble.Replica(point.best_rate, seed) for seed in SEEDS]
    exact_S = ensemble.train(half, replicas, 16, 1000, evaluate_every=1).steps_to(0.9).numpy()
    there = np.isfinite(point.steps_S)
    assert (point.steps_S >= exact_S)[there].all()  # it looks less often than every update
    assert np.median(point.steps_S[there]) <= 2 * np.median(exact_S)


def test_a_target_that_is_never_reached_is_nan_and_remarked(survey, monkeypatch):
    monkeypatch.setattr(sweep, "_MAX_STEPS", 8)
    found = swept(survey, [16, 64], target=1.0)
    assert np.isnan(found.steps_PS).all() and all(math.isnan(point.best_rate) for point in found.points)
    assert all(point.reached == 0 and math.isnan(point.median) for point in found.points)
    remark = "5 of 5 seeds never reached 100% at batch size 16 within 8 updates, learning rate 0.00195312 to 0.03125"
    assert found.remarks()[0] == remark


def test_seeds_without_the_target_and_a_rate_at_the_edge_are_remarked():
    steps_S = np.array([10.0, 12.0, np.nan, 11.0, np.nan])
    point = SweepPoint(8, (0.1, 0.2), np.ones((2, 3)), 0.2, True, steps_S, 50)
    assert point.reached == 3 and point.median == 12
    assert Sweep(0.9, (point,)).remarks() == [
        "2 of 5 seeds never reached 90% at batch size 8 within 50 updates, learning rate 0.2",
        "at batch size 8 the best rate 0.2 is the grid's edge",
    ]
