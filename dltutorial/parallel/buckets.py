"""Buckets of gradients, so that a single all-reduce averages many gradients. The rule is that of torch's DDP.

Gradients are added to a bucket until it holds its limit *or more*. Then the bucket is full, and the next bucket begins.
No gradient is divided, so a bucket can be larger than its limit by almost one gradient. Here the limit is 6 bytes.

    number of the gradient, in the order of the backward pass    0 1 | 2 3 | 4
    bytes of the gradient                                        3 3 | 3 5 | 4      three buckets

``assign_buckets`` is this rule. Its input is the bytes of each gradient in the order of the backward pass, and its
output is the gradients of each bucket. ``make_buckets`` applies the rule to the parameters of a model. The backward
pass begins with the last layer, so this layer is in the first bucket. Horovod calls the same idea tensor fusion.

Source: Li et al. 2020 (arXiv:2006.15704), sections 3.2 and 3.2.3, and torch's ``_compute_bucket_assignment_by_size``.
"""

from collections.abc import Iterable, Sequence

from torch import nn

DEFAULT_BYTES = 25 * 2**20  # torch's default limit of a bucket
FIRST_BYTES = 2**20  # torch's default limit of the first bucket: it is small, so that communication starts early


def assign_buckets(
    sizes_bytes: Sequence[float],
    limit_bytes: float,
    first_limit_bytes: float,
) -> list[list[int]]:
    """Assign gradients to buckets.

    Args:
        sizes_bytes: The bytes of each gradient, in the order in which the backward pass computes them.
        limit_bytes: A bucket with this many bytes is full. With 0, each gradient has its own bucket.
        first_limit_bytes: The limit of the first bucket.

    Returns:
        For each bucket the indices of its gradients. Only the last bucket may be smaller than its limit.
    """
    limit = first_limit_bytes
    buckets: list[list[int]] = []
    bucket: list[int] = []
    for index in range(len(sizes_bytes)):
        bucket.append(index)
        bucket_bytes = sum(sizes_bytes[i] for i in bucket)
        if bucket_bytes >= limit:
            buckets.append(bucket)
            bucket = []
            limit = limit_bytes
    if bucket:
        buckets.append(bucket)
    return buckets


def make_buckets(parameters: Iterable[nn.Parameter], limit_bytes: int) -> list[list[nn.Parameter]]:
    """Assign the trainable parameters to buckets, the last parameter first.

    Args:
        parameters: The parameters in the order of the model, all of one dtype and on one device.
        limit_bytes: A bucket with this many bytes is full. With 0, each parameter has its own bucket.

    Returns:
        The parameters of each bucket. The buckets are in the order in which the backward pass fills them.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    trainable.reverse()  # the backward pass begins with the last layer
    sizes_bytes = [parameter.nbytes for parameter in trainable]
    groups = assign_buckets(sizes_bytes, limit_bytes, first_limit_bytes=limit_bytes)
    return [[trainable[i] for i in group] for group in groups]
