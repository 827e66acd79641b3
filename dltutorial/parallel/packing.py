"""Which gradients share a bucket: the rule of torch's ``DistributedDataParallel``.

In: bytes of the gradients, in the order in which the backward pass makes them. Out: which ones go together. Gradients
join a bucket until it holds its limit *or more*: then it is full, and the next one begins. So no gradient is cut, and
a bucket can be larger than its limit by nearly one gradient.

Source: Li et al. 2020 (arXiv:2006.15704), section 3.2.3, and torch's ``_compute_bucket_assignment_by_size``.
"""

from collections.abc import Hashable, Sequence

DEFAULT_BYTES = 25 * 2**20  # torch's
FIRST_BYTES = 2**20  # of the first bucket where nobody asks for a size: small, so that communication begins early


def packed(
    sizes: Sequence[float], limit: float, first: float | None = None, kinds: Sequence[Hashable] | None = None
) -> list[list[int]]:
    """Numbers of the gradients in each bucket; those not yet full at the end come last, in the order of their start.

    Args:
        sizes: bytes of each gradient.
        limit: bytes with which a bucket is full; 0 gives each gradient a bucket of its own.
        first: the same for the first bucket; default: as all others.
        kinds: of each gradient, such as its dtype; a bucket is of one kind. Default: all alike.
    """
    limits: dict[Hashable, float] = {}
    filling: dict[Hashable, list[int]] = {}
    full: list[list[int]] = []
    for number, kind in enumerate(kinds or [None] * len(sizes)):
        group = filling.setdefault(kind, [])
        group.append(number)
        if sum(sizes[n] for n in group) >= limits.get(kind, limit if first is None else first):
            full.append(filling.pop(kind))
            limits[kind] = limit
    return full + list(filling.values())
