import numpy as np
import pytest
from tallying import tally

from dltutorial.comm import stopwatch
from dltutorial.comm.communicator import Traffic
from dltutorial.comm.cost import Counts, Prices, Regimes, counts, fit, fit_regimes, rms

NAMES = tuple(stopwatch.OURS)
SIZES = [4**k for k in range(4, 13)]
SMALL, LARGE = Prices(1e-4, 2e-10, 1e-10, 1), Prices(1e-4, 5e-10, 3e-10, 1)


def planted(prices, p=4):
    """Times that a machine of just these prices would take; a function of the size chooses them."""
    found = [(n, counts(name, p, n, 2)) for name in NAMES for n in SIZES]
    return [(n, c, prices(n).seconds(c)) for n, c in found]


def test_the_textbook_formulas():
    n, p = 800.0, 8
    assert counts("ring", p, n) == Counts(14, 1400, 700, 112, 11200, 5600)
    assert counts("tree", p, n) == Counts(6, 6 * n, 3 * n, 14, 14 * n, 7 * n)
    assert counts("doubling", p, n) == Counts(3, 3 * n, 3 * n, 24, 24 * n, 24 * n)
    assert counts("server", p, n) == Counts(2, 14 * n, 7 * n, 14, 14 * n, 7 * n)
    assert counts("doubling", 6, n).rounds == 4


@pytest.mark.parametrize("p", [3, 8])
def test_no_all_reduce_sends_fewer_bytes_than_a_ring(p):
    ring = counts("ring", p, 840)
    for name in ("tree", "doubling", "server", "hierarchical"):
        assert counts(name, p, 840, 2).sent_bytes >= ring.sent_bytes
        assert counts(name, p, 840, 2).path_bytes >= ring.path_bytes


def test_a_tally_takes_the_busiest_ranks_path_and_all_ranks_messages():
    ranks = [Traffic(rounds=2, messages=2, sent_bytes=8, path_bytes=8), Traffic(rounds=3, messages=1, sent_bytes=4)]
    assert tally(ranks) == Counts(3, 8, 0, 3, 12, 0)


def test_lanes_choose_between_the_longest_path_and_all_there_is():
    found = counts("ring", 4, 4000)
    assert Prices(1, 0, 0, lanes=4).seconds(found) == 6
    assert Prices(1, 0, 0, lanes=1).seconds(found) == 24
    assert Prices(0, 1, 0, lanes=4).seconds(found) == 6000
    assert Prices(0, 1, 0, lanes=1).seconds(found) == 24000


def test_a_fit_finds_the_prices_that_made_the_times():
    found = fit(planted(lambda n: SMALL))
    assert np.allclose([found.message_s, found.byte_s, found.reduced_byte_s], [1e-4, 2e-10, 1e-10])


def test_all_reduce_alone_cannot_tell_sending_from_adding():
    """Every ring adds half the bytes that it sends: one price explains both; a gather beside it tells them apart."""
    samples = [(n, counts("ring", 4, n), SMALL.seconds(counts("ring", 4, n))) for n in SIZES]
    assert rms(Regimes(fit(samples), SMALL, 2**40).residuals(samples)) < 1e-6
    gathers = [(n, counts("all_gather", 4, n), SMALL.seconds(counts("all_gather", 4, n))) for n in SIZES]
    assert fit(samples + gathers).reduced_byte_s == pytest.approx(1e-10)


def test_the_kink_is_found_and_the_residuals_are_shown():
    kink = SIZES[5]
    samples = planted(lambda n: SMALL if n <= kink else LARGE)
    found = fit_regimes(samples)
    assert found.kink_bytes == kink
    assert rms(found.residuals(samples)) < 1e-6
    assert found.large.byte_s == pytest.approx(5e-10)
    assert rms(Regimes(fit(samples), fit(samples), kink).residuals(samples)) > 0.05
