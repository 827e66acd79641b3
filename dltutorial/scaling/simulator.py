"""Simulate a training step on P ranks: compute, buckets that overlap with the backward pass, and stragglers.

In: a ``Workload`` (what a rank computes and sends), a ``Cluster`` (what an all-reduce costs), and the spread of the
ranks. Out: ``Steps``, the seconds of each part of the step for every number of ranks. All of it is arrays over P, so
the numbers 1 to 27,360 together take a fraction of a second. The module uses NumPy and SciPy and no torch.

The timeline of one rank is as follows. The forward pass takes a third of the work and the backward pass two thirds.
Gradients become ready from the last layer to the first. When a bucket of gradients is full, its all-reduce starts, as
soon as the all-reduce before it has ended:

    forward │ backward: layer L … layer 1 │ waits │ optimizer
                        └ bucket 1 ┴ bucket 2 ┴ b. 3 ┘

The communication that continues after the backward pass is *exposed*. The buckets follow the rule of torch's
DistributedDataParallel (Li et al. 2020, arXiv:2006.15704).

Legend: P numbers of ranks, L layers, B buckets, X points of an integral, G grid points of an interpolation.
"""

from dataclasses import dataclass

import numpy as np

from dltutorial.parallel.buckets import DEFAULT_BYTES, FIRST_BYTES, assign_buckets
from dltutorial.scaling.clusters import Cluster
from dltutorial.scaling.workloads import Workload

FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Spread:
    """How much the ranks differ.

    Attributes:
        speed: standard deviation of their compute times, as a share. The same ranks are slow in every step.
        jitter_s: standard deviation of a random delay of each rank in each step, in seconds.
    """

    speed: float = 0.0
    jitter_s: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Seconds of the parts of a step, for every number of ranks. All fields have the shape (P,).

    Attributes:
        samples_P: samples of each rank.
        compute_s: of the mean rank.
        straggler_s: what the slowest rank adds to it.
        exposed_s: of the communication that no compute overlaps.
    """

    samples_P: np.ndarray
    compute_s: np.ndarray
    straggler_s: np.ndarray
    exposed_s: np.ndarray

    @property
    def step_s(self) -> np.ndarray:
        """Seconds of the complete step."""
        return self.compute_s + self.straggler_s + self.exposed_s


def buckets(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Gather layers into buckets.

    Complete layers join, from the last to the first, until a bucket has at least 25 MiB. The first bucket needs
    only 1 MiB.

    Returns:
        The bytes (B,) of each bucket, and the share (B,) of the backward pass after which it is full.
    """
    bytes_L = np.array(workload.weights_L) * workload.bytes_per_value
    groups = assign_buckets(bytes_L.tolist(), DEFAULT_BYTES, FIRST_BYTES)
    groups = [group for group in groups if bytes_L[group].any()]
    done_L = np.cumsum(workload.work_L)
    last_B = [group[-1] for group in groups]
    bytes_B = np.array([bytes_L[group].sum() for group in groups])
    return bytes_B, done_L[last_B] / done_L[-1]


def simulate(
    workload: Workload,
    network: Cluster,
    ranks_P: float | np.ndarray,
    samples_per_rank: float | np.ndarray = 1.0,
    *,
    spread: Spread = Spread(),
    overlap: bool = True,
) -> Steps:
    """Simulate the step on each number of ranks.

    Args:
        workload: what a rank computes for a sample, and what it sends.
        network: what an all-reduce costs.
        ranks_P: numbers of ranks.
        samples_per_rank: one number for weak scaling; ``global_batch / ranks_P`` for strong scaling.
        spread: of the ranks' speeds.
        overlap: whether a bucket's all-reduce starts during the backward pass, or only at its end.
    """
    ranks = np.atleast_1d(np.asarray(ranks_P, dtype=float))
    samples = np.broadcast_to(np.asarray(samples_per_rank, dtype=float), ranks.shape)
    compute_s = workload.sample_s * samples
    straggler_s = expected_max(ranks) * np.hypot(spread.speed * compute_s, spread.jitter_s)
    slowest_s = compute_s + straggler_s  # an all-reduce needs the gradients of the slowest rank
    end_s = np.zeros_like(ranks)  # of the last all-reduce so far
    for n_bytes, ready_share in zip(*buckets(workload), strict=True):
        all_reduce_s = network.all_reduce_s(ranks, n_bytes)
        start_share = 1.0
        if overlap:
            start_share = FORWARD_SHARE + (1 - FORWARD_SHARE) * ready_share
        end_s = np.maximum(end_s, start_share * slowest_s) + all_reduce_s
    exposed_s = np.where(ranks > 1, np.maximum(0.0, end_s - slowest_s), 0.0)
    return Steps(samples, compute_s, straggler_s, exposed_s)


def expected_max(ranks_P: float | np.ndarray) -> np.ndarray:
    """The mean of the largest of P standard normal values. It says by how much the slowest rank is late.

    This is an *order statistic*. It grows without bound, although slowly. Source: David and Nagaraja, Order Statistics
    (2003), chapter 3.
    """
    # Importing scipy takes about half a second, and most notebooks do not call this function.
    from scipy.integrate import trapezoid
    from scipy.special import log_ndtr

    ranks = np.asarray(ranks_P, dtype=float)
    # The mean is ∫ x d(Φ(x)^P). By parts, this is the upper limit minus the area below Φ^P. It is smooth in log P, so
    # it is computed on a grid and interpolated.
    x_X = np.linspace(-9, 9, 721)
    grid_G = np.unique(np.concatenate([np.arange(1, 33), np.geomspace(1, ranks.max(), 128)]))
    all_below_GX = np.exp(np.multiply.outer(grid_G, log_ndtr(x_X)))
    mean_G = x_X[-1] - trapezoid(all_below_GX, x_X)
    return np.maximum(np.interp(np.log(ranks), np.log(grid_G), mean_G), 0.0)
