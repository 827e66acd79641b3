"""A training step on P ranks, simulated: compute, buckets that overlap with the backward pass, stragglers.

In: a ``Workload`` (what a rank does), a ``Cluster`` (what an all-reduce costs), how ranks differ. Out:
``Steps``: for every number of ranks, where the time of a step goes. All of it is arrays over P: the numbers 1 to 27,360
together take a fraction of a second. NumPy and SciPy, no torch.

The timeline of one rank. The forward pass takes a third of the work, the backward pass two thirds. Layers finish from
the last to the first. When a bucket of gradients is full, its all-reduce starts, as soon as the one before has ended:

    forward │ backward: layer L … layer 1 │ waits │ optimizer
                        └ bucket 1 ┴ bucket 2 ┴ b. 3 ┘

What is left over after the backward pass is *exposed*. The rule of the buckets is that of torch's
DistributedDataParallel: Li et al. 2020, arXiv:2006.15704.

Legend: P numbers of ranks, B buckets.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import trapezoid
from scipy.special import log_ndtr

from dltutorial.parallel.bucket_model import DEFAULT_BYTES, FIRST_BYTES, assign_buckets
from dltutorial.scaling.clusters import Cluster
from dltutorial.scaling.workloads import Workload

FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Spread:
    """How much the ranks differ.

    Attributes:
        speed: standard deviation of their compute times, as a share; the same ranks are slow in every step.
        jitter_s: standard deviation of a disturbance of each rank in each step, seconds.
    """

    speed: float = 0.0
    jitter_s: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Where the time of a step goes, for every number of ranks.

    Attributes:
        ranks_P, samples_P: numbers of ranks, and samples of each rank.
        compute_s: of the mean rank.
        straggler_s: waiting for the slowest.
        communication_s: all-reduces, hidden or not.
        exposed_s: the part of them that no computing hides.
    """

    ranks_P: np.ndarray
    samples_P: np.ndarray
    compute_s: np.ndarray
    straggler_s: np.ndarray
    communication_s: np.ndarray
    exposed_s: np.ndarray

    @property
    def step_s(self) -> np.ndarray:
        """The whole step."""
        return self.compute_s + self.straggler_s + self.exposed_s


def buckets(workload: Workload, bucket_bytes: float = DEFAULT_BYTES) -> tuple[np.ndarray, np.ndarray]:
    """Layers gathered into buckets: bytes of each, and the share of the backward pass after which each is full.

    Whole layers join, from the last to the first, until there are ``bucket_bytes`` (1 MiB in the first bucket).
    """
    bytes_L = np.array(workload.weights_L) * workload.bytes_per_value
    groups = assign_buckets(bytes_L.tolist(), bucket_bytes, min(FIRST_BYTES, bucket_bytes))
    groups = [group for group in groups if bytes_L[group].any()]
    done_L = np.cumsum(workload.work_L)
    last_B = [group[-1] for group in groups]
    return np.array([bytes_L[group].sum() for group in groups]), done_L[last_B] / done_L[-1]


def simulate(
    workload: Workload, network: Cluster, ranks_P: float | np.ndarray, samples_per_rank: float | np.ndarray = 1.0, *,
    spread: Spread = Spread(), overlap: bool = True, bucket_bytes: float = DEFAULT_BYTES,
) -> Steps:  # fmt: skip
    """The step of each number of ranks.

    Args:
        workload: what a rank does for a sample, and sends.
        network: what an all-reduce costs.
        ranks_P: numbers of ranks.
        samples_per_rank: one number for weak scaling; ``global_batch / ranks_P`` for strong scaling.
        spread: of the ranks' speeds.
        overlap: start a bucket's all-reduce during the backward pass; False waits for the end of it.
        bucket_bytes: of a bucket; ``np.inf`` sends everything at once.
    """
    ranks = np.atleast_1d(np.asarray(ranks_P, dtype=float))
    samples = np.broadcast_to(np.asarray(samples_per_rank, dtype=float), ranks.shape)
    work_s = workload.sample_s * samples
    straggler_s = expected_max(ranks) * np.hypot(spread.speed * work_s, spread.jitter_s)
    slowest_s = work_s + straggler_s  # an all-reduce starts when the last rank's gradients are there
    communication_s, end_s = np.zeros_like(ranks), np.zeros_like(ranks)
    for n_bytes, ready in zip(*buckets(workload, bucket_bytes), strict=True):
        one_s = network.all_reduce_s(ranks, n_bytes)
        communication_s = communication_s + one_s
        share = FORWARD_SHARE + (1 - FORWARD_SHARE) * ready if overlap else 1.0
        end_s = np.maximum(end_s, share * slowest_s) + one_s
    exposed_s = np.where(ranks > 1, np.maximum(0.0, end_s - slowest_s), 0.0)
    return Steps(ranks, samples, work_s, straggler_s, communication_s, exposed_s)


def expected_max(ranks_P: float | np.ndarray) -> np.ndarray:
    """Mean of the largest of P normal values, in standard deviations above their mean: what the slowest rank costs.

    An *order statistic*: it grows without bound, though slowly. David and Nagaraja, Order Statistics (2003), chapter 3.
    """
    ranks = np.asarray(ranks_P, dtype=float)
    # ∫ x d(Φ(x)^P) by parts: the upper end minus the area below Φ^P. It is smooth in log P, so interpolate.
    x_X, nodes = np.linspace(-9, 9, 721), np.unique(np.r_[np.arange(1, 33), np.geomspace(1, ranks.max(), 128)])
    found = x_X[-1] - trapezoid(np.exp(np.multiply.outer(nodes, log_ndtr(x_X))), x_X)
    return np.maximum(np.interp(np.log(ranks), np.log(nodes), found), 0.0)
