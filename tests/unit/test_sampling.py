import itertools

import pytest

from dltutorial.data import sampling
from dltutorial.errors import DataError


def epoch(n, batch_size, world_size, number=0):
    """The batches of every rank in one epoch."""
    steps = n // batch_size
    of_ranks = [
        sampling.endless_batch_sampler(n, batch_size, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    return [indices_of(itertools.islice(batches, number * steps, (number + 1) * steps)) for batches in of_ranks]


def indices_of(batches):
    """The indices of each batch, without the shifts."""
    return [[index for index, _ in batch] for batch in batches]


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
    alone = dict(itertools.chain(*take(3)))
    for rank in range(3):
        for index, shift in itertools.chain(*take(3, rank=rank, world_size=3)):
            assert alone[index] == shift


def take(n, **options):
    return list(itertools.islice(sampling.endless_batch_sampler(24, 8, max_shift=99, seed=5, **options), n))


def test_shifts_are_between_0_and_max_shift():
    assert set(sampling.epoch_shifts(200, 3, 0, 0).tolist()) == {0, 1, 2, 3}
    assert set(sampling.epoch_shifts(200, 0, 0, 0).tolist()) == {0}


def test_after_an_epoch_a_new_epoch_starts():
    batches = indices_of(itertools.islice(sampling.endless_batch_sampler(10, 4), 6))
    assert all(len(set(batches[i] + batches[i + 1])) == 8 for i in (0, 2, 4))
    assert batches[:2] != batches[2:4]


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_resumed_run_goes_on_where_it_was(n):
    whole = list(itertools.islice(sampling.endless_batch_sampler(10, 4, seed=1, max_shift=7), 12))
    resumed = sampling.endless_batch_sampler(10, 4, seed=1, max_shift=7, n_batches_to_skip=n)
    assert list(itertools.islice(resumed, 12 - n)) == whole[n:]


def test_too_large_a_batch_is_one_line():
    with pytest.raises(DataError, match=r"^a batch of 11 needs more than the 10 samples there are; lower .*$"):
        sampling.endless_batch_sampler(10, 11)  # at once, before a loader starts workers
