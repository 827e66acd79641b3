"""Ranks that send and receive tensors, and a count of all they say: what the collectives of this course stand on.

In: tensors to send, with the number of the rank that gets them. Out: the same tensors elsewhere, and in ``traffic``
the messages, bytes and rounds that this rank has had a part in. A *round* is one exchange: everything in it is under
way at once, and the next one waits for it. Only contiguous tensors travel; empty ones need no message.

Sources: https://docs.pytorch.org/docs/stable/distributed.html, "Point-to-point communication"; the model that the
counts feed is in ``cost``.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dltutorial.errors import CourseError

if TYPE_CHECKING:
    from torch import Tensor

Parcel = tuple["Tensor", int]  # a tensor and the rank it goes to or comes from


@dataclass
class Traffic:
    """What one rank has said and added up; a counter.

    Attributes:
        rounds: exchanges, one after the other, in which this rank had something to send or to receive.
        messages, sent_bytes: that it has sent.
        path_bytes: of each round the larger of sent and received bytes, summed: both directions run at once.
        far_bytes: of those sent, to another node.
        reduced_bytes: received and added to its own.
    """

    rounds: int = 0
    messages: int = 0
    sent_bytes: int = 0
    path_bytes: int = 0
    far_bytes: int = 0
    reduced_bytes: int = 0


class Transport(Protocol):
    """How tensors travel: through torch.distributed, or through MPI (``mpi``)."""

    rank: int
    world_size: int

    def exchange(self, outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        """Send and receive all of them at once; return when all are there."""


class TorchTransport:
    """Through the process group that the launcher made: gloo for tensors in host memory, NCCL for those on GPUs."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank, self.world_size, self._backend = dist.get_rank(), dist.get_world_size(), dist.get_backend()

    def exchange(self, outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        """All in one batch: NCCL would start a send alone, wait for its receiver, and never come to the receive."""
        import torch.distributed as dist

        device = "cuda" if self._backend == "nccl" else "cpu"
        for x, _ in (*outgoing, *incoming):
            if x.device.type != device:
                raise ValueError(f"{self._backend} carries tensors on {device}, not on {x.device}; move them there")
        receives = [dist.P2POp(dist.irecv, x, peer) for x, peer in incoming]
        sends = [dist.P2POp(dist.isend, x, peer) for x, peer in outgoing]
        for work in dist.batch_isend_irecv(receives + sends):
            work.wait()


@dataclass
class Communicator:
    """Ranks in an order of their own: ``rank`` is this one's place among ``size``, ``nodes`` says where each is.

    Attributes:
        transport: carries the tensors; default: torch.distributed.
        members: global numbers of the ranks that take part; default: all.
        node_size: ranks on a node, so that messages between nodes are counted apart; 0: all on one.
        traffic: what this rank has said so far, in any communicator made from this one.
    """

    transport: Transport = field(default_factory=TorchTransport)
    members: tuple[int, ...] = ()
    node_size: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    _spare: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.members = tuple(self.members) or tuple(range(self.transport.world_size))
        self.rank, self.size = self.members.index(self.transport.rank), len(self.members)
        self.nodes = [member // self.node_size if self.node_size else 0 for member in self.members]

    def subset(self, places: Sequence[int]) -> "Communicator":
        """A smaller one of those at ``places``; it counts into the same traffic."""
        return dataclasses.replace(self, members=tuple(self.members[place] for place in places))

    def send(self, x: "Tensor", to: int) -> None:
        """Send a tensor and wait until it is taken."""
        self.exchange_all([(x, to)], [])

    def receive(self, x: "Tensor", source: int) -> None:
        """Wait for a tensor and write it over ``x``."""
        self.exchange_all([], [(x, source)])

    def exchange(self, out: "Tensor", to: int, into: "Tensor", source: int) -> None:
        """Send one tensor and receive another at the same time: one round."""
        self.exchange_all([(out, to)], [(into, source)])

    def exchange_all(self, outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        """Send and receive any number at the same time: one round.

        Raises:
            ValueError: a tensor that is not contiguous, or lies where the backend cannot reach it.
            CourseError: no such rank.
        """
        sends, receives = self._checked(outgoing), self._checked(incoming)
        if sends or receives:
            self._count(sends, receives)
            to, source = ([(x, self.members[peer]) for x, peer in some] for some in (sends, receives))
            self.transport.exchange(to, source)

    def add(self, x: "Tensor", received: "Tensor") -> None:
        """Add what was received to ``x``, and count it."""
        x.add_(received)
        self.traffic.reduced_bytes += received.nbytes

    def spare(self, like: "Tensor", *shape: int) -> "Tensor":
        """Memory for one of ``like``, or for ``shape``, the same at every call: fresh memory costs time to touch."""
        key, wanted = (like.dtype, like.device), shape or like.shape
        numel = math.prod(wanted)
        if key not in self._spare or len(self._spare[key]) < numel:
            self._spare[key] = like.new_empty(numel)
        return self._spare[key][:numel].view(wanted)

    def _checked(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """All but empty tensors, as the peer leaves them out too."""
        for x, peer in parcels:
            if not x.is_contiguous():
                raise ValueError(f"a tensor of strides {x.stride()} is not contiguous; send x.contiguous()")
            if not 0 <= peer < self.size or peer == self.rank:
                raise CourseError(f"rank {self.rank} of {self.size} has no peer {peer}; take it modulo comm.size")
        return [(x, peer) for x, peer in parcels if x.numel()]

    def _count(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        sent_bytes, received_bytes = (sum(x.nbytes for x, _ in some) for some in (sends, receives))
        traffic = self.traffic
        traffic.rounds += 1
        traffic.messages += len(sends)
        traffic.sent_bytes += sent_bytes
        traffic.path_bytes += max(sent_bytes, received_bytes)
        traffic.far_bytes += sum(x.nbytes for x, peer in sends if self.nodes[peer] != self.nodes[self.rank])
