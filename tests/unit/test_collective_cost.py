import pytest

from dltutorial.scaling.collective_cost import Counts, Prices, counts


def test_the_textbook_formulas():
    n, p = 800.0, 8
    assert counts("ring", p, n, 1) == Counts(14, 1400, 112, 11200)
    assert counts("tree", p, n, 1) == Counts(6, 6 * n, 14, 14 * n)
    assert counts("doubling", p, n, 1) == Counts(3, 3 * n, 24, 24 * n)
    assert counts("server", p, n, 1) == Counts(2, 14 * n, 14, 14 * n)
    assert counts("doubling", 6, n, 1).rounds == 4


@pytest.mark.parametrize("p", [3, 8])
def test_no_all_reduce_sends_fewer_bytes_than_a_ring(p):
    ring = counts("ring", p, 840, 2)
    for name in ("tree", "doubling", "server", "hierarchical"):
        assert counts(name, p, 840, 2).sent_bytes >= ring.sent_bytes
        assert counts(name, p, 840, 2).path_bytes >= ring.path_bytes


def test_lanes_choose_between_the_longest_path_and_all_there_is():
    found = counts("ring", 4, 4000, 1)
    assert Prices(1, 0, lanes=4).seconds(found) == 6
    assert Prices(1, 0, lanes=1).seconds(found) == 24
    assert Prices(0, 1, lanes=4).seconds(found) == 6000
    assert Prices(0, 1, lanes=1).seconds(found) == 24000
