"""Which gradients share a bucket: torch's rule.

Gradients are added to a bucket until it holds its limit *or more*. Then the bucket is full, and the next
bucket begins. No gradient is divided, so a bucket can be larger than its limit by almost one gradient.

The input is the bytes of each gradient in the order of the backward pass. The output is the gradients of each bucket.

Source: Li et al. 2020 (arXiv:2006.15704), section 3.2.3, and torch's ``_compute_bucket_assignment_by_size``.
"""

from collections.abc import Hashable, Sequence

DEFAULT_BYTES = 25 * 2**20  # torch's default limit of a bucket
FIRST_BYTES = 2**20  # torch's default limit of the first bucket: it is small, so that communication starts early


def assign_buckets(
    sizes_bytes: Sequence[float],
    limit_bytes: float,
    first_limit_bytes: float | None = None,
    kinds: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """Assign gradients to buckets.

    Args:
        sizes_bytes: The bytes of each gradient, in the order in which the backward pass computes them.
        limit_bytes: A bucket with this many bytes is full. With 0, each gradient has its own bucket.
        first_limit_bytes: The limit of the first bucket of each kind. The default is ``limit_bytes``.
        kinds: The kind of each gradient, such as its dtype. A bucket has gradients of one kind. By default all
            gradients are of the same kind.

    Returns:
        For each bucket the indices of its gradients. Full buckets come first, in the order in which they become full.
        The others follow, in the order in which they were begun.
    """
    if first_limit_bytes is None:
        first_limit_bytes = limit_bytes
    if kinds is None:
        kinds = [None] * len(sizes_bytes)
    limits: dict[Hashable, float] = dict.fromkeys(kinds, first_limit_bytes)
    open_buckets: dict[Hashable, list[int]] = {}
    full_buckets: list[list[int]] = []
    for index, kind in enumerate(kinds):
        bucket = open_buckets.setdefault(kind, [])
        bucket.append(index)
        bucket_bytes = sum(sizes_bytes[i] for i in bucket)
        if bucket_bytes >= limits[kind]:
            full_buckets.append(open_buckets.pop(kind))
            limits[kind] = limit_bytes
    return full_buckets + list(open_buckets.values())
