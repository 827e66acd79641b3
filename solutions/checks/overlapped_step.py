"""Checks of chapter 11's exercise: the time of a step whose all-reduces overlap with the backward pass.

The answer gets the samples of one GPU, the number of GPUs, a job and a cluster, and returns the seconds of a step. The
checks compare it with a reference model. A known mistake is this model with one assumption changed.

A job is ``{"sample_s": …, "buckets": [(bytes, share), …]}``, where a bucket is full after this share of the backward
pass. A cluster is ``{"gpus_per_node": …, "intra_gbyte_per_s": …, "node_gbit_per_s": …, "hop_s": …}``.

Source: Li et al. 2020, arXiv:2006.15704
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from dltutorial.course.checks import Exercise
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

_A_RING = (
    "A ring sends 2 (P - 1) / P of the bytes over every link: one half to add, and one half to distribute the sum."
)


@dataclass(frozen=True)
class Model:
    """The reference model. A known mistake is a model with another value of one attribute.

    Attributes:
        overlap: Whether a bucket is sent as soon as it is full, and not after the backward pass.
        queue: Whether a bucket waits until the bucket before it has been sent.
        from_start: Whether communication begins with the step.
        forward: The share of the forward pass in the computation.
        n_rounds: How often a ring sends the bytes over each link.
        fraction: Whether a ring sends the fraction (P - 1) / P of the bytes, and not all bytes.
        bits_per_byte: The bits of a byte in the bandwidth between nodes.
        hops: The latencies of a ring, from the number of GPUs.
        node_share: The factor of the bandwidth between nodes, from the GPUs of a node.
        inside: The link that is used within one node, "intra" or "node".
        across: The link that is used across nodes.
        floor: Whether a step takes at least as long as its computation.
    """

    overlap: bool = True
    queue: bool = True
    from_start: bool = False
    forward: float = 1 / 3
    n_rounds: float = 2.0
    fraction: bool = True
    bits_per_byte: float = 8.0
    hops: Callable[[int], int] = lambda gpus: 2 * (gpus - 1)
    node_share: Callable[[int], float] = lambda gpus_per_node: 1.0
    inside: str = "intra"
    across: str = "node"
    floor: bool = True

    def ring_s(self, n_bytes: float, gpus: int, cluster: dict) -> float:
        """Return the seconds of one all-reduce."""
        if gpus == 1:
            return 0.0
        rates = {
            "intra": 1e9 * cluster["intra_gbyte_per_s"],
            "node": 1e9 * cluster["node_gbit_per_s"] / self.bits_per_byte * self.node_share(cluster["gpus_per_node"]),
        }
        is_one_node = gpus <= cluster["gpus_per_node"]
        bytes_per_s = rates[self.inside if is_one_node else self.across]
        fraction = (gpus - 1) / gpus if self.fraction else 1.0
        return self.n_rounds * fraction * n_bytes / bytes_per_s + self.hops(gpus) * cluster["hop_s"]

    def step_s(self, samples: float, gpus: int, job: dict, cluster: dict) -> float:
        """Return the seconds of a step with so many samples on each GPU."""
        compute_s = samples * job["sample_s"]
        end_s = 0.0  # of the all-reduce before
        latest_s = 0.0
        for n_bytes, share in job["buckets"]:
            full_s = compute_s
            if self.overlap:
                full_s = compute_s * (self.forward + (1 - self.forward) * share)
            begin_s = full_s
            if self.queue:
                begin_s = max(full_s, end_s)
            if self.from_start:
                begin_s = end_s
            end_s = begin_s + self.ring_s(n_bytes, gpus, cluster)
            latest_s = max(latest_s, end_s)
        return max(compute_s, latest_s) if self.floor else latest_s


RIGHT = Model()
_STEP_MISTAKES = (
    (
        {"overlap": False},
        "Your all-reduces wait for the end of the backward pass. Start an all-reduce as soon as its bucket is full.",
    ),
    (
        {"queue": False},
        "Your all-reduces run at the same time. An all-reduce also waits until the one before it has ended.",
    ),
    ({"from_start": True}, "Your first all-reduce starts at time 0. It can start only when its bucket is full."),
    (
        {"forward": 0.0},
        "The share counts from the start of the backward pass, which begins after one third of the computation.",
    ),
    (
        {"forward": 2 / 3},
        "The forward pass takes one third of the computation, and the backward pass takes two thirds.",
    ),
    ({"n_rounds": 1.0}, f"You count only half of the bytes. {_A_RING}"),
    ({"fraction": False}, f"You count twice the bytes. {_A_RING}"),
    ({"n_rounds": 1.0, "fraction": False}, f"You count the bytes once. {_A_RING}"),
    ({"bits_per_byte": 1.0}, "The bandwidth between nodes is given in bits: 200 Gbit/s are 25 GB/s."),
    ({"hops": lambda gpus: 0}, "Each hop takes hop_s, even for few bytes. A ring has 2 (P - 1) hops."),
    ({"hops": lambda gpus: 1}, "A ring takes 2 (P - 1) hops, one after the other, and not one hop."),
    ({"hops": lambda gpus: gpus - 1}, "The data go around the ring twice, so there are 2 (P - 1) hops."),
    (
        {"node_share": lambda n: n},
        "The bandwidth between nodes belongs to a whole node. Do not multiply it by the GPUs of a node.",
    ),
    (
        {"node_share": lambda n: 1 / n},
        "The ring leaves a node only once, so it has the whole bandwidth. Do not divide it by the GPUs of a node.",
    ),
    ({"inside": "node"}, "Inside one node, use the bandwidth between its GPUs."),
    ({"floor": False}, "A step never ends before its computation ends."),
    ({"across": "intra"}, "With more than one node, use the bandwidth between the nodes."),
)

FAT = {"gpus_per_node": 4, "intra_gbyte_per_s": 240.0, "node_gbit_per_s": 200.0, "hop_s": 1e-5}
THIN = {"gpus_per_node": 8, "intra_gbyte_per_s": 72.0, "node_gbit_per_s": 50.0, "hop_s": 2e-5}
UNET: dict[str, Any] = {
    "sample_s": 1.4e-3,
    "buckets": [(4e6, 0.41), (84e6, 0.65), (134e6, 0.67), (240e6, 0.72), (11e6, 1.0)],
}
RESNET: dict[str, Any] = {"sample_s": 4e-3, "buckets": [(9e6, 0.01), (27e6, 0.2), (30e6, 0.5), (36e6, 1.0)]}
_WHOLE: dict[str, Any] = {"sample_s": 2e-3, "buckets": [(400e6, 1.0)]}
_FROZEN: dict[str, Any] = {"sample_s": 4e-3, "buckets": [(20e6, 0.3), (20e6, 0.6)]}
_TINY: dict[str, Any] = {"sample_s": 1e-3, "buckets": [(8e3, 0.5), (8e3, 1.0)]}
_EARLY: dict[str, Any] = {"sample_s": 1e-3, "buckets": [(200e6, 0.1), (200e6, 0.3), (100e6, 0.9)]}


def _compare_step(fn: Callable, samples: float, gpus: int, job: dict, cluster: dict) -> None:
    """The answer must be the seconds of the reference model."""
    expected = RIGHT.step_s(samples, gpus, job, cluster)
    mistakes = []
    for change, hint in _STEP_MISTAKES:
        mistakes.append((replace(RIGHT, **change).step_s(samples, gpus, job, cluster), hint))
    mistakes.append(
        (
            expected - samples * job["sample_s"],
            "Return the time of the complete step, and not only the exposed communication.",
        )
    )
    mistakes.append((1e3 * expected, "Return seconds, not milliseconds."))
    expect_close(fn(samples, gpus, deepcopy(job), dict(cluster)), expected, mistakes=mistakes, rtol=1e-6)


def _one_gpu(fn: Callable) -> None:
    """One GPU does not communicate"""
    expected = 32 * UNET["sample_s"]
    mistakes = [(UNET["sample_s"], "Each sample takes sample_s. Multiply it by the samples of one GPU.")]
    hint = "With one GPU there is only computation: samples * sample_s."
    expect_close(fn(32, 1, deepcopy(UNET), dict(FAT)), expected, hint=hint, mistakes=mistakes, rtol=1e-6)


_STEP_HINTS = (
    "First compute the seconds of one ring. Then write a loop over the buckets that stores when an all-reduce ends.",
    "A ring takes 2 (P - 1) / P * bytes / bandwidth + 2 (P - 1) * hop_s. The bandwidth depends on the number of nodes.",
    "An all-reduce starts at the later of two times: its bucket is full, and the all-reduce before it has ended.",
)
EXERCISE = Exercise(
    name="overlapped_step",
    chapter="11",
    cases=(
        _one_gpu,
        case("One bucket, full at the end, inside one node", _compare_step, 8, 4, _WHOLE, FAT),
        case("The same bucket across nodes", _compare_step, 8, 32, _WHOLE, FAT),
        case("Few bytes on many GPUs, so the hops take most of the time", _compare_step, 4, 512, _TINY, THIN),
        case(
            "All all-reduces except the last one overlap with the backward pass", _compare_step, 32, 256, RESNET, THIN
        ),
        case(
            "The first layers are frozen, so all communication ends before the computation",
            _compare_step,
            32,
            8,
            _FROZEN,
            FAT,
        ),
        case("Buckets that are full at nearly the same time", _compare_step, 64, 128, UNET, FAT),
        case("Early buckets whose all-reduces take long", _compare_step, 60, 16, _EARLY, THIN),
    ),
    hints=_STEP_HINTS,
)
