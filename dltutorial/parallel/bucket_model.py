"""Which gradients share a bucket, and how long a step takes then: torch's rule, and a cost model with four parameters.

**The rule.** Gradients are added to a bucket until it holds its limit *or more*. Then the bucket is full, and the next
bucket begins. No gradient is divided, so a bucket can be larger than its limit by almost one gradient.

**The cost model.** Inputs are the bytes of each gradient in the order of the backward pass, the seconds of computation,
and the time of one all-reduce, ``latency_s + bytes / bytes_per_s``. Outputs are the seconds of the step, and the start
and the end of each all-reduce. With overlap, a step of three buckets looks like this:

    backward pass    [ bucket 0 ][ bucket 1 ][ bucket 2 ]
    all-reduces                  [ 0 ]       [ 1 ]       [ 2 ]
                                                         ──── only this time is added to the step

The model assumes that the backward pass computes gradients at a constant rate in bytes per second, that one all-reduce
runs at a time, and that computation and communication do not slow each other down. The last assumption does not hold
where ranks share cores.

Source: Li et al. 2020 (arXiv:2006.15704), sections 3.2.3 and 5, and torch's ``_compute_bucket_assignment_by_size``.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Link:
    """The time of one all-reduce over all ranks.

    Attributes:
        latency_s: The seconds of the smallest all-reduce.
        bytes_per_s: The bytes of gradient per second. The traffic between ranks is larger.
    """

    latency_s: float
    bytes_per_s: float

    def message_s(self, n_bytes: float) -> float:
        """Return the seconds of an all-reduce of ``n_bytes``."""
        return self.latency_s + n_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Message:
    """The all-reduce of one bucket. Times are in seconds from the start of the backward pass.

    Attributes:
        n_bytes: The bytes of gradient.
        start_s: The time at which the all-reduce starts.
        end_s: The time at which all ranks have the mean.
    """

    n_bytes: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """The computation of one rank in one step, without communication.

    Attributes:
        gradient_bytes: The bytes of each gradient, in the order in which the backward pass computes them.
        backward_s: The seconds of the backward pass.
        rest_s: The seconds of the forward pass and the optimizer.
    """

    gradient_bytes: Sequence[int]
    backward_s: float
    rest_s: float

    def messages(self, link: Link, bucket_bytes: float, *, overlap: bool) -> list[Message]:
        """Return the all-reduces of one step, one after the other. The arguments are those of :meth:`seconds`."""
        total_bytes = sum(self.gradient_bytes)
        computed_bytes = 0
        link_free_s = 0.0
        messages = []
        for bucket in assign_buckets(self.gradient_bytes, bucket_bytes):
            n_bytes = sum(self.gradient_bytes[i] for i in bucket)
            computed_bytes += n_bytes
            ready_s = self.backward_s
            if overlap:
                ready_s = self.backward_s * computed_bytes / total_bytes
            start_s = max(link_free_s, ready_s)
            link_free_s = start_s + link.message_s(n_bytes)
            messages.append(Message(n_bytes, start_s, link_free_s))
        return messages

    def seconds(self, link: Link, bucket_bytes: float, *, overlap: bool) -> float:
        """Return the seconds of the whole step.

        Args:
            link: The time of an all-reduce.
            bucket_bytes: A bucket with this many bytes is full. With 0, each gradient has its own bucket.
            overlap: With True, an all-reduce starts as soon as its bucket is full. With False, all of them wait for the
                end of the backward pass.

        Returns:
            The time from the start of the forward pass to the end of the optimizer's step.
        """
        messages = self.messages(link, bucket_bytes, overlap=overlap)
        ends_s = [message.end_s for message in messages]
        return self.rest_s + max([self.backward_s, *ends_s])
