"""Ranks send tensors to each other, and each rank counts what it sends: the basis of all collectives of this course.

A *peer* is the rank to which a tensor goes, or from which it comes. A caller passes tensors and the numbers of their
peers. Afterwards the tensors are on the other ranks, and ``Communicator.traffic`` counts this rank's rounds, messages
and bytes.

A *round* is one call of ``exchange_all``. All of its sends and receives run at the same time, and the next round starts
when they are complete. Here three ranks need one round for three messages:

    rank 0 ──x──► rank 1 ──y──► rank 2 ──z──► rank 0

All tensors must be contiguous, and on the device that the backend serves. Empty tensors are not sent.

Source: https://docs.pytorch.org/docs/stable/distributed.html, section "Point-to-point communication". The module
``cost`` predicts the counts and computes seconds from them.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

PeerTensor = tuple["Tensor", int]  # a tensor, and the rank to which it goes or from which it comes


@dataclass
class Traffic:
    """Counters of what one rank has sent, received and added.

    Attributes:
        rounds: The number of rounds in which this rank sent or received a tensor.
        messages: The number of tensors that this rank has sent.
        sent_bytes: The bytes of these tensors.
        path_bytes: The sum over all rounds of the sent or the received bytes, whichever are more. Both directions of a
            link run at the same time, so only the larger number costs time.
        inter_node_bytes: The part of ``sent_bytes`` that went to other nodes.
        reduced_bytes: The bytes that this rank has received and added to its own.
    """

    rounds: int = 0
    messages: int = 0
    sent_bytes: int = 0
    path_bytes: int = 0
    inter_node_bytes: int = 0
    reduced_bytes: int = 0


class Transport(Protocol):
    """The library that moves tensors between ranks: torch.distributed here, MPI in the module ``mpi``."""

    rank: int
    world_size: int

    def exchange(self, outgoing: Sequence[PeerTensor], incoming: Sequence[PeerTensor]) -> None:
        """Send and receive all tensors at the same time, and return when all of them have arrived."""


class TorchTransport:
    """Moves tensors through torch's process group: gloo for tensors in host memory, NCCL for tensors on GPUs."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def exchange(self, outgoing: Sequence[PeerTensor], incoming: Sequence[PeerTensor]) -> None:
        """Send and receive all tensors in one batch.

        A batch is necessary with NCCL. NCCL would start a single send, wait for its receiver, and never reach the
        receive that its peer waits for.
        """
        import torch.distributed as dist

        operations = [dist.P2POp(dist.irecv, x, peer) for x, peer in incoming]
        operations += [dist.P2POp(dist.isend, x, peer) for x, peer in outgoing]
        for work in dist.batch_isend_irecv(operations):
            work.wait()


@dataclass
class Communicator:
    """A group of ranks with their own numbering: this rank is number ``rank`` of ``size``.

    The list ``nodes`` has the node of each rank of the group.

    Attributes:
        transport: It moves the tensors. The default is torch.distributed.
        members: The global numbers of the ranks in the group. The default is all ranks.
        node_size: The number of ranks on a node. It separates the bytes between nodes from those inside a node. With 0,
            all ranks are on one node.
        traffic: The counters of this rank. All subsets of this group count into the same counters.
    """

    transport: Transport = field(default_factory=TorchTransport)
    members: tuple[int, ...] = ()
    node_size: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    _scratch: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.members:
            self.members = tuple(range(self.transport.world_size))
        self.rank = self.members.index(self.transport.rank)
        self.size = len(self.members)
        self.nodes = [0] * self.size
        if self.node_size > 0:
            self.nodes = [member // self.node_size for member in self.members]

    def subset(self, ranks: Sequence[int]) -> "Communicator":
        """Make a communicator of fewer ranks, which counts into the same traffic.

        Args:
            ranks: The numbers that these ranks have in this group. This rank must be one of them.

        Returns:
            The smaller group, whose ranks are numbered from 0.
        """
        members = tuple(self.members[rank] for rank in ranks)
        return dataclasses.replace(self, members=members)

    def send(self, x: "Tensor", peer: int) -> None:
        """Send ``x`` to a peer, and wait until the peer has received it."""
        self.exchange_all([(x, peer)], [])

    def receive(self, x: "Tensor", peer: int) -> None:
        """Wait for a tensor from a peer, and write it over ``x``."""
        self.exchange_all([], [(x, peer)])

    def exchange(self, outgoing: "Tensor", to_peer: int, incoming: "Tensor", from_peer: int) -> None:
        """Send one tensor and receive another one in the same round. The received values overwrite ``incoming``."""
        self.exchange_all([(outgoing, to_peer)], [(incoming, from_peer)])

    def exchange_all(self, outgoing: Sequence[PeerTensor], incoming: Sequence[PeerTensor]) -> None:
        """Send and receive any number of tensors in one round.

        Args:
            outgoing: The tensors to send, each with the rank that receives it.
            incoming: The tensors to overwrite, each with the rank that sends it.
        """
        # The peer leaves out its empty tensors, too, so no rank waits for one of them.
        sends = [(x, peer) for x, peer in outgoing if x.numel() > 0]
        receives = [(x, peer) for x, peer in incoming if x.numel() > 0]
        if sends or receives:
            self._count(sends, receives)
            self.transport.exchange(self._with_global_ranks(sends), self._with_global_ranks(receives))

    def add(self, x: "Tensor", received: "Tensor") -> None:
        """Add received values to ``x`` in place, and count their bytes."""
        x.add_(received)
        self.traffic.reduced_bytes += received.nbytes

    def scratch(self, like: "Tensor", *shape: int) -> "Tensor":
        """Return memory to receive into. Every call returns the same memory, because new memory is slow at first use.

        Args:
            like: A tensor of the dtype and on the device that the memory should have.
            shape: The shape. The default is the shape of ``like``.

        Returns:
            A tensor with arbitrary values. It is valid until the next call.
        """
        wanted_shape = shape or like.shape
        numel = math.prod(wanted_shape)
        key = (like.dtype, like.device)
        if key not in self._scratch or len(self._scratch[key]) < numel:
            self._scratch[key] = like.new_empty(numel)
        return self._scratch[key][:numel].view(wanted_shape)

    def _with_global_ranks(self, peer_tensors: Sequence[PeerTensor]) -> list[PeerTensor]:
        """Replace the peers' numbers in this group by their global numbers."""
        return [(x, self.members[peer]) for x, peer in peer_tensors]

    def _count(self, sends: Sequence[PeerTensor], receives: Sequence[PeerTensor]) -> None:
        """Add one round to the counters."""
        sent_bytes = sum(x.nbytes for x, _ in sends)
        received_bytes = sum(x.nbytes for x, _ in receives)
        own_node = self.nodes[self.rank]
        traffic = self.traffic
        traffic.rounds += 1
        traffic.messages += len(sends)
        traffic.sent_bytes += sent_bytes
        traffic.path_bytes += max(sent_bytes, received_bytes)
        traffic.inter_node_bytes += sum(x.nbytes for x, peer in sends if self.nodes[peer] != own_node)
