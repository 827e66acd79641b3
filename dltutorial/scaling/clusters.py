"""A model of what an all-reduce costs on a cluster with two kinds of links, inside a node and between nodes.

In: the number of GPUs in a node, the bandwidth of both kinds of links in bytes/s, and latencies in seconds. Out: the
seconds of one all-reduce, for any number of ranks P and of bytes. Both may be arrays. The module uses NumPy and no
torch.

There are three algorithms:

- *ring*: a ring through all GPUs sends 2 (P - 1)/P of the bytes over every link, in 2 (P - 1) hops.
- *tree*: a tree over the nodes, with a chain inside each node, sends everything up and down again, in few hops.
- *hierarchical*: a reduce-scatter inside the node, a ring between the nodes, and an all-gather inside the node follow
  each other.

The fastest of the three counts. The latencies and formulas are those with which NCCL chooses its algorithm:
https://github.com/NVIDIA/nccl, src/graph/tuning.cc, commit 01afd20, protocol "Simple".
"""

from dataclasses import dataclass

import numpy as np

from dltutorial.errors import CourseError
from dltutorial.record import plots

_TREE_SHARE = 0.9  # of the bandwidth that a tree reaches, in NCCL's own model


@dataclass(frozen=True)
class Latency:
    """Seconds of one hop; NCCL's figures for V100 and A100.

    Attributes:
        intra_ring_s, inter_ring_s: of a ring, inside a node and between nodes.
        intra_tree_s, inter_tree_s: of a tree, inside a node and between nodes.
        start_s: to start an all-reduce.
    """

    intra_ring_s: float = 3.4e-6
    inter_ring_s: float = 9.6e-6
    intra_tree_s: float = 28e-6
    inter_tree_s: float = 50e-6
    start_s: float = 8.4e-6


@dataclass(frozen=True)
class Cluster:
    """A cluster with two kinds of links.

    Attributes:
        gpus_per_node: number of GPUs that share the links of one node.
        intra_bytes_per_s: into and out of one GPU, inside the node, in each direction.
        inter_bytes_per_s: into and out of one node, in each direction, for all its GPUs together.
        latency: of the hops.
    """

    gpus_per_node: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    latency: Latency = Latency()

    def all_reduce_s(self, ranks_P: float | np.ndarray, n_bytes: float | np.ndarray) -> np.ndarray:
        """Seconds of one all-reduce by the fastest algorithm; 0 for one rank.

        Args:
            ranks_P: number of GPUs that take part. They fill one node after the other.
            n_bytes: size of the array on every rank; it broadcasts against ``ranks_P``.
        """
        ranks = np.asarray(ranks_P, dtype=float)
        hop = self.latency
        nodes = np.ceil(ranks / self.gpus_per_node)
        ranks_on_node = np.minimum(ranks, self.gpus_per_node)
        # A ring or a tree through all ranks is as fast as the slowest link that it uses.
        intra_bytes_per_s = np.where(ranks_on_node > 1, self.intra_bytes_per_s, np.inf)
        inter_bytes_per_s = np.where(nodes > 1, self.inter_bytes_per_s, np.inf)
        slowest_bytes_per_s = np.minimum(intra_bytes_per_s, inter_bytes_per_s)

        hops_between_nodes = np.where(nodes > 1, nodes, 0.0)
        hops_inside_nodes = ranks - hops_between_nodes
        around_s = hops_between_nodes * hop.inter_ring_s + hops_inside_nodes * hop.intra_ring_s
        ring_s = 2 * (ranks - 1) / ranks * (around_s + n_bytes / slowest_bytes_per_s)

        up_s = (ranks_on_node - 1) * hop.intra_tree_s + np.ceil(np.log2(nodes)) * hop.inter_tree_s
        tree_s = 2 * (up_s + n_bytes / (_TREE_SHARE * slowest_bytes_per_s))

        inside_hop_s = hop.intra_ring_s + n_bytes / ranks_on_node / self.intra_bytes_per_s
        between_hop_s = hop.inter_ring_s + n_bytes / nodes / self.inter_bytes_per_s
        hierarchical_s = 2 * (ranks_on_node - 1) * inside_hop_s + 2 * (nodes - 1) * between_hop_s

        fastest_s = np.minimum.reduce([ring_s, tree_s, hierarchical_s])
        return np.where(ranks > 1, fastest_s + hop.start_s, 0.0)


def load(name: str) -> Cluster:
    """Load a cluster of ``reference/clusters.csv``.

    Raises:
        CourseError: The file has no cluster of this name.
    """
    rows = {row["cluster"]: row for row in plots.reference("clusters")}
    if name not in rows:
        raise CourseError(f"no cluster {name!r}; choose one of: {', '.join(rows)}")
    row = rows[name]
    return Cluster(
        gpus_per_node=int(row["gpus_per_node"]),
        intra_bytes_per_s=1e9 * float(row["intra_gbyte_per_s"] or "inf"),
        inter_bytes_per_s=1e9 * float(row["inter_gbyte_per_s"]),
    )
