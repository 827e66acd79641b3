import random

import pytest
import torch
import torch.distributed as dist

from dltutorial.parallel.buckets import assign_buckets


@pytest.mark.parametrize("seed", range(5))
def test_buckets_are_torchs(seed):
    rng = random.Random(seed)
    dtypes = [torch.float32, torch.float64][: rng.randint(1, 2)]
    gradients = [torch.zeros(rng.randint(1, 30), dtype=rng.choice(dtypes)) for _ in range(rng.randint(1, 40))]
    first, limit = rng.choice([(8, 8), (20, 100), (100, 100), (50, 10_000)])
    limits = [first, limit] if first != limit else [limit]
    numbers = list(range(len(gradients)))
    torchs, _ = dist._compute_bucket_assignment_by_size(gradients, limits, [False] * len(gradients), numbers)
    ours = assign_buckets([g.nbytes for g in gradients], limit, first, [g.dtype for g in gradients])
    assert sorted(ours) == sorted(torchs)
    n_full = len(ours) - len(dtypes)
    assert ours[:n_full] == torchs[:n_full]


def test_a_bucket_is_full_with_its_limit_or_more():
    assert assign_buckets([3, 3, 3, 3], 6) == [[0, 1], [2, 3]]
    assert assign_buckets([3, 3, 3, 3], 5) == [[0, 1], [2, 3]]
    assert assign_buckets([3, 3, 3, 3], 7) == [[0, 1, 2], [3]]
    assert assign_buckets([3, 3, 3, 3], 7, first_limit_bytes=1) == [[0], [1, 2, 3]]
    assert assign_buckets([3, 3], 0) == [[0], [1]]
    assert assign_buckets([], 5) == []


def test_kinds_do_not_mix_and_each_has_a_first_bucket():
    assert assign_buckets([5, 5, 5, 5, 5], 10, 5, "abaab") == [[0], [1], [2, 3], [4]]
