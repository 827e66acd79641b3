"""A cluster as gradients see it, and what an all-reduce costs on it: two levels of links, rings and trees.

In: GPUs in a node, bytes/s inside a node and out of it, latencies. Out: seconds of one all-reduce for any number of
ranks and bytes, both of which may be arrays. Plain NumPy, no torch.

Three algorithms. A *ring* through all GPUs sends 2 (P − 1)/P of the bytes over every link in 2 (P − 1) hops. A *tree*
over nodes, with a chain inside each, sends everything up and down again in few hops. *hierarchical*: reduce-scatter
inside the node, ring between nodes, all-gather inside, one after the other. "best" takes what is quickest.

What can be said about latency stands in NCCL, which reckons with the same formulas to choose its algorithm:
https://github.com/NVIDIA/nccl, src/graph/tuning.cc, commit 01afd20, protocol "Simple".
"""

from dataclasses import dataclass

import numpy as np

from dltutorial.errors import CourseError
from dltutorial.record import plots

_TREE_SHARE = 0.9  # of the bandwidth that a tree reaches, in NCCL's own model


@dataclass(frozen=True)
class Latency:
    """Seconds of one hop; NCCL's figures for V100 and A100."""

    intra_ring_s: float = 3.4e-6
    inter_ring_s: float = 9.6e-6
    intra_tree_s: float = 28e-6
    inter_tree_s: float = 50e-6
    start_s: float = 8.4e-6


@dataclass(frozen=True)
class Cluster:
    """Two levels of links.

    Attributes:
        name: for tables.
        gpus_per_node: that share one way out of the node.
        intra_bytes_per_s: into and out of one GPU, inside the node, each way.
        inter_bytes_per_s: into and out of one node, each way, for all its GPUs together.
        latency: of the hops.
        source: where the figures come from.
    """

    name: str
    gpus_per_node: int
    intra_bytes_per_s: float
    inter_bytes_per_s: float
    latency: Latency = Latency()
    source: str = ""

    def all_reduce_s(
        self, ranks_P: float | np.ndarray, n_bytes: float | np.ndarray, algorithm: str = "best"
    ) -> np.ndarray:
        """Seconds of one all-reduce of ``n_bytes`` on each rank; 0 for one rank.

        Args:
            ranks_P: how many GPUs take part, filled node by node.
            n_bytes: of the array on every rank; broadcast against ``ranks_P``.
            algorithm: ring, tree, hierarchical, or best, the quickest of the three.
        """
        ranks, hop = np.asarray(ranks_P, dtype=float), self.latency
        nodes, inside = np.ceil(ranks / self.gpus_per_node), np.minimum(ranks, self.gpus_per_node)
        intra, inter = self.intra_bytes_per_s, self.inter_bytes_per_s
        # The slowest link that a ring or tree through all of them passes.
        narrowest = np.minimum(np.where(inside > 1, intra, np.inf), np.where(nodes > 1, inter, np.inf))
        out = np.where(nodes > 1, nodes, 0.0)  # hops between nodes, of one turn around the ring
        turn_s = out * hop.inter_ring_s + (ranks - out) * hop.intra_ring_s
        depth_s = (inside - 1) * hop.intra_tree_s + np.ceil(np.log2(nodes)) * hop.inter_tree_s
        inner_s = 2 * (inside - 1) * (hop.intra_ring_s + n_bytes / inside / intra)
        seconds = {
            "ring": 2 * (ranks - 1) / ranks * (turn_s + n_bytes / narrowest),
            "tree": 2 * (depth_s + n_bytes / (_TREE_SHARE * narrowest)),
            "hierarchical": inner_s + 2 * (nodes - 1) * (hop.inter_ring_s + n_bytes / nodes / inter),
        }
        seconds["best"] = np.minimum.reduce(list(seconds.values()))
        return np.where(ranks > 1, seconds[algorithm] + hop.start_s, 0.0)


def load(name: str) -> Cluster:
    """A cluster of ``reference/clusters.csv``. CourseError: it is not there."""
    found = {row["cluster"]: row for row in plots.reference("clusters")}
    if name not in found:
        raise CourseError(f"no cluster {name!r}; choose one of: {', '.join(found)}")
    row = found[name]
    return Cluster(
        name=name,
        gpus_per_node=int(row["gpus_per_node"]),
        intra_bytes_per_s=1e9 * float(row["intra_gbyte_per_s"] or "inf"),
        inter_bytes_per_s=1e9 * float(row["inter_gbyte_per_s"]),
        source=row["source"],
    )
