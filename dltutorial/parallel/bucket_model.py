"""Which gradients share a bucket, and how long does a step take then? torch's rule, and a model with four numbers.

Gradients join a bucket until it holds its limit *or more*: then it is full, and the next one begins. So no gradient is
cut, and a bucket can be larger than its limit by nearly one gradient. Source: Li et al. 2020 (arXiv:2006.15704),
section 3.2.3, and torch's ``_compute_bucket_assignment_by_size``.

The model. In: bytes of each layer's gradient in the order of the backward pass, seconds of computing, and what one
message costs: ``latency_s + bytes / bytes_per_s``. Out: seconds of the step, how many of them wait for the network,
and when each message is under way.

The backward pass makes its gradients at a steady pace, in proportion to their bytes. Messages go one at a time, in
order. Computing and communicating do not slow each other down; where ranks share cores, they do. After section 5 there.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

DEFAULT_BYTES = 25 * 2**20  # torch's
FIRST_BYTES = 2**20  # of the first bucket where nobody asks for a size: small, so that communication begins early


def assign_buckets(
    sizes: Sequence[float], limit: float, first: float | None = None, kinds: Sequence[Hashable] | None = None
) -> list[list[int]]:
    """Numbers of the gradients in each bucket; those not yet full at the end come last, in the order of their start.

    Args:
        sizes: bytes of each gradient, in the order in which the backward pass makes them.
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


@dataclass(frozen=True)
class Link:
    """What one all-reduce costs, all ranks and the way there and back included.

    Attributes:
        latency_s: of the smallest one.
        bytes_per_s: of gradient, not of traffic.
    """

    latency_s: float
    bytes_per_s: float

    def message_s(self, n_bytes: float) -> float:
        """Seconds of one all-reduce."""
        return self.latency_s + n_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Message:
    """One bucket under way; seconds count from the start of the backward pass.

    Attributes:
        n_bytes: of gradient.
        start_s, end_s: when it leaves, and when all ranks have it.
    """

    n_bytes: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """One rank's computing, without any communication.

    Attributes:
        gradient_bytes: of each parameter, in the order in which the backward pass makes them.
        backward_s: seconds of the backward pass.
        rest_s: seconds of all else: forward pass, optimizer.
    """

    gradient_bytes: Sequence[int]
    backward_s: float
    rest_s: float

    def messages(self, link: Link, bucket_bytes: float, *, overlap: bool) -> list[Message]:
        """What is sent when, one after the other; arguments as of :meth:`seconds`."""
        made, free_s, whole, sent = 0, 0.0, sum(self.gradient_bytes), []
        for group in assign_buckets(self.gradient_bytes, bucket_bytes):
            n_bytes = sum(self.gradient_bytes[n] for n in group)
            made += n_bytes
            start_s = max(free_s, self.backward_s * (made / whole if overlap else 1))
            free_s = start_s + link.message_s(n_bytes)
            sent.append(Message(n_bytes, start_s, free_s))
        return sent

    def seconds(self, link: Link, bucket_bytes: float, *, overlap: bool) -> float:
        """Of the whole step.

        Args:
            link: what a message costs.
            bucket_bytes: with which a bucket is full; 0 sends each gradient by itself.
            overlap: whether a bucket leaves when it is full, or all when the backward pass is over.
        """
        sent = self.messages(link, bucket_bytes, overlap=overlap)
        return self.rest_s + max([self.backward_s, *(message.end_s for message in sent)])
