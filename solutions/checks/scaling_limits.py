"""Checks of chapter 11's second exercise: how far a fixed batch scales, by the model of ``overlapped_step``.

The answer gets the batch of all GPUs together, a job, a cluster, an efficiency to reach and the most GPUs. It returns
the first number of GPUs at which communication takes longer than computation, or None, and the most GPUs that reach the
efficiency. Numbers of GPUs are powers of two. A known mistake is the reference with one assumption changed.

Source: Goyal et al. 2017, arXiv:1706.02677
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect
from dltutorial.course.checks.overlapped_step import FAT, RESNET, RIGHT, THIN, UNET, Model


@dataclass(frozen=True)
class _Limits:
    """The reference. A known mistake has another value of one attribute.

    Attributes:
        model: The model of a step.
        divided: Whether the computation of a GPU shrinks with the number of GPUs.
        exposed: Whether only the communication that does not overlap counts for the crossover.
        per_gpu: Whether efficiency is the speed-up divided by the number of GPUs.
        pick: The function that chooses among the numbers of GPUs that reach the efficiency.
        weak: Whether the efficiency is that of weak scaling, where the batch grows with the number of GPUs.
    """

    model: Model = RIGHT
    divided: bool = True
    exposed: bool = False
    per_gpu: bool = True
    pick: Callable = max
    weak: bool = False

    def find(self, batch: int, job: dict, cluster: dict, goal: float, most: int) -> tuple[int | None, int]:
        """Return the crossover of communication and computation, and the most GPUs that reach the goal."""
        counts = [2**n for n in range(most.bit_length())]
        above = [p for p in counts if self._communicate_s(batch, p, job, cluster) > self._compute_s(batch, p, job)]
        efficient = [p for p in counts if self._efficiency(batch, p, job, cluster) >= goal]
        return min(above, default=None), self.pick(efficient, default=1)

    def _compute_s(self, batch: int, gpus: int, job: dict) -> float:
        return batch * job["sample_s"] / (gpus if self.divided else 1)

    def _communicate_s(self, batch: int, gpus: int, job: dict, cluster: dict) -> float:
        if self.exposed:
            return self.model.step_s(batch / gpus, gpus, job, cluster) - batch / gpus * job["sample_s"]
        return sum(self.model.ring_s(n_bytes, gpus, cluster) for n_bytes, _ in job["buckets"])

    def _efficiency(self, batch: int, gpus: int, job: dict, cluster: dict) -> float:
        if self.weak:
            return batch * job["sample_s"] / self.model.step_s(batch, gpus, job, cluster)
        speed_up = batch * job["sample_s"] / self.model.step_s(batch / gpus, gpus, job, cluster)
        return speed_up / gpus if self.per_gpu else speed_up


_LIMIT_MISTAKES = (
    ({"divided": False}, "With a fixed batch, each GPU computes 1/P of it. Compare with the computation of one GPU."),
    ({"exposed": True}, "For the crossover, count all communication, and not only the exposed part."),
    ({"per_gpu": False}, "Efficiency is the speed-up divided by the number of GPUs."),
    ({"pick": min}, "Return the largest number of GPUs that reaches the goal, not the smallest."),
    ({"weak": True}, "The global batch is fixed. Each GPU gets batch / gpus samples."),
    ({"model": replace(RIGHT, overlap=False)}, "For the efficiency, use your step with overlap."),
)
_FIRST = "The crossover is the smallest number of GPUs for which communication takes longer."
_CROSSOVER = "The second number is right. For the crossover, compare the sum of all all-reduces with the computation."


def _compare_limits(fn: Callable, batch: int, job: dict, cluster: dict, goal: float, most: int) -> None:
    """The answer must be both limits of the reference."""
    expected = _Limits().find(batch, job, cluster, goal, most)
    got = fn(batch, deepcopy(job), dict(cluster), goal, most)
    shape = "Return two values: the crossover (or None), and the largest number of GPUs that reaches the goal."
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(expected, got, shape)
    limits = tuple(_as_int(number) for number in got)
    crossover, n_efficient = expected
    mistakes: list[tuple[Any, str]] = []
    for change, hint in _LIMIT_MISTAKES:
        mistakes.append((_Limits(**change).find(batch, job, cluster, goal, most), hint))
    mistakes.append((expected[::-1], "Return the crossover first, and then the largest number of GPUs."))
    if crossover is not None:
        mistakes.append(((crossover // 2, n_efficient), _FIRST))
    mistakes.append(
        (
            (crossover, 2 * n_efficient),
            "This number of GPUs does not reach the goal any more. Return the number before it.",
        )
    )
    if limits[1] == n_efficient:
        mistakes.append((limits, _CROSSOVER))
    expect(limits, expected, hint=shape if limits[1] is None else "", mistakes=mistakes)


def _as_int(number: Any) -> Any:
    """Return a whole number of NumPy, or a float that is one, as an int, and anything else as it is."""
    try:
        return int(number) if int(number) == number else number
    except (TypeError, ValueError):
        return number


_LIMIT_HINTS = (
    "Try 1, 2, 4, … GPUs up to most. Each GPU has batch / gpus samples.",
    "Crossover: the first number of GPUs for which the sum of all all-reduces is larger than batch / gpus * sample_s.",
    "Efficiency: batch * sample_s / (gpus * step_s(batch / gpus, gpus, job, cluster)).",
)
EXERCISE = Exercise(
    name="scaling_limits",
    chapter="11",
    cases=(
        case("A U-Net with 64 samples on a fast network", _compare_limits, 64, UNET, FAT, 0.8, 512),
        case("A ResNet with 8,192 images over Ethernet", _compare_limits, 8192, RESNET, THIN, 0.9, 2048),
        case("A small batch with a goal of 50%", _compare_limits, 256, RESNET, THIN, 0.5, 512),
        case("So few GPUs that the computation always takes longer", _compare_limits, 4096, UNET, FAT, 0.95, 8),
    ),
    hints=_LIMIT_HINTS,
)
