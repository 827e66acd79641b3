import itertools

import pytest

from dltutorial.data import sampling
from dltutorial.errors import DataError


def epoch(n, batch_size, world_size, number=0):
    """The batches of every rank in one epoch."""
    steps = n // batch_size
    draws = [sampling.endless(n, batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    return [[indices for indices, _ in itertools.islice(d, number * steps, (number + 1) * steps)] for d in draws]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("n", "batch_size"), [(64, 8), (65, 8), (63, 8), (10, 7), (7, 7), (100, 9)])
def test_over_all_ranks_no_sample_of_a_batch_is_lost_and_none_comes_twice(n, batch_size, world_size):
    indices = list(itertools.chain(*itertools.chain(*epoch(n, batch_size, world_size))))
    assert len(indices) == len(set(indices)) == n - n % batch_size
    assert set(indices) <= set(range(n))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_ranks_share_the_batches_that_one_process_reads(world_size):
    (alone,) = epoch(40, 8, 1, number=3)
    for batch, *shares in zip(alone, *epoch(40, 8, world_size, number=3), strict=True):
        assert sorted(itertools.chain(*shares)) == sorted(batch)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_epoch_and_seed_has_its_own_order():
    orders = {tuple(sampling.epoch_order(30, seed, number).tolist()) for seed in range(4) for number in range(4)}
    assert len(orders) == 16
    assert all(sorted(order) == list(range(30)) for order in orders)


def test_shifts_do_not_depend_on_the_ranks():
    alone = {i: s for indices, shifts in take(3) for i, s in zip(indices, shifts, strict=True)}
    for rank in range(3):
        for indices, shifts in take(3, rank=rank, world_size=3):
            assert [alone[index] for index in indices] == shifts


def take(n, **options):
    return list(itertools.islice(sampling.endless(24, 8, width=100, seed=5, **options), n))


def test_endless_goes_on_with_a_new_epoch():
    batches = [indices for indices, _ in itertools.islice(sampling.endless(10, 4), 6)]
    assert all(len(set(batches[i] + batches[i + 1])) == 8 for i in (0, 2, 4))
    assert batches[:2] != batches[2:4]


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_resumed_run_goes_on_where_it_was(n):
    whole = list(itertools.islice(sampling.endless(10, 4, seed=1, width=8), 12))
    resumed = sampling.endless(10, 4, seed=1, width=8, n_batches_to_skip=n)
    assert list(itertools.islice(resumed, 12 - n)) == whole[n:]


def test_too_large_a_batch_is_one_line():
    with pytest.raises(DataError, match=r"^a batch of 11 needs more than the 10 samples there are; lower .*$"):
        sampling.endless(10, 11)
