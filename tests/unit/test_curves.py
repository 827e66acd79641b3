import numpy as np
import pytest

from dltutorial.convergence import curves

SIZES = (4, 16, 64, 256, 1024, 4096)


def planted(s_min=60, b_crit=250, noise=0.1, seeds=5, seed=0):
    """Steps that follow the law, with the scatter that seeds have."""
    steps_P = curves.steps(np.array(SIZES), s_min, b_crit)
    return steps_P[:, None] * np.exp(noise * np.random.default_rng(seed).normal(size=(len(SIZES), seeds)))


@pytest.mark.parametrize(("s_min", "b_crit"), [(60, 250), (10, 30), (500, 2000)])
def test_without_noise_the_constants_come_back(s_min, b_crit):
    found = curves.fit(SIZES, planted(s_min, b_crit, noise=0))
    assert found.s_min == pytest.approx(s_min, rel=5e-3) and found.b_crit == pytest.approx(b_crit, rel=5e-3)
    assert found.b_crit_range == pytest.approx((b_crit, b_crit), rel=5e-3)


def test_the_knee_needs_twice_the_updates_and_the_trade_off_is_a_hyperbola():
    found = curves.fit(SIZES, planted(noise=0))
    assert found.steps(found.b_crit) == pytest.approx(2 * found.s_min)
    sizes = np.array(SIZES)
    e_min = found.s_min * found.b_crit
    product = (found.steps(sizes) / found.s_min - 1) * (found.steps(sizes) * sizes / e_min - 1)
    np.testing.assert_allclose(product, 1)


def test_a_seed_that_is_not_there_counts_as_the_last():
    steps_PS = planted(noise=0)
    steps_PS[0, 2] = np.nan
    found = curves.fit(SIZES, steps_PS)
    assert found.b_crit == pytest.approx(250, rel=5e-3)
    assert np.isfinite(found.b_crit_K).all()
