import random

import pytest
import torch
import torch.distributed as dist

from dltutorial.parallel.buckets import assign_buckets


@pytest.mark.parametrize("seed", range(5))
def test_buckets_are_torchs(seed):
    rng = random.Random(seed)
    gradients = [torch.zeros(rng.randint(1, 30)) for _ in range(rng.randint(1, 40))]
    first, limit = rng.choice([(8, 8), (20, 100), (100, 100), (50, 10_000)])
    limits = [first, limit] if first != limit else [limit]
    numbers = list(range(len(gradients)))
    torchs, _ = dist._compute_bucket_assignment_by_size(gradients, limits, [False] * len(gradients), numbers)
    assert assign_buckets([g.nbytes for g in gradients], limit, first) == torchs


def test_a_bucket_is_full_with_its_limit_or_more():
    assert assign_buckets([3, 3, 3, 3], 6, 6) == [[0, 1], [2, 3]]
    assert assign_buckets([3, 3, 3, 3], 5, 5) == [[0, 1], [2, 3]]
    assert assign_buckets([3, 3, 3, 3], 7, 7) == [[0, 1, 2], [3]]
    assert assign_buckets([3, 3, 3, 3], 7, first_limit_bytes=1) == [[0], [1, 2, 3]]
    assert assign_buckets([3, 3], 0, 0) == [[0], [1]]
    assert assign_buckets([], 5, 5) == []
