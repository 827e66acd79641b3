"""Checks of chapter 11's second exercise: how far a fixed batch scales, by the model of ``overlapped_step``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect
from dltutorial.course.checks.overlapped_step import FAT, RESNET, RIGHT, THIN, UNET, Model, copy


@dataclass(frozen=True)
class _Limits:
    """How the limits are found, with a switch for every mistake."""

    model: Model = RIGHT
    divided: bool = True  # computing shrinks with the number of GPUs
    exposed: bool = False  # compare what sticks out, not all that is sent
    per_gpu: bool = True  # efficiency is the speed-up per GPU
    pick: Callable = max
    weak: bool = False  # efficiency of a batch that grows

    def find(self, batch: int, job: dict, cluster: dict, goal: float, most: int) -> tuple[int | None, int]:
        """Where sending overtakes computing, and the most GPUs that reach the goal."""
        counts = [2**n for n in range(most.bit_length()) if 2**n <= most]
        over = [p for p in counts if self._sent_s(batch, p, job, cluster) > self._computed_s(batch, p, job)]
        good = [p for p in counts if self._efficiency(batch, p, job, cluster) >= goal]
        return min(over, default=None), self.pick(good, default=1)

    def _computed_s(self, batch: int, gpus: int, job: dict) -> float:
        return batch * job["sample_s"] / (gpus if self.divided else 1)

    def _sent_s(self, batch: int, gpus: int, job: dict, cluster: dict) -> float:
        if self.exposed:
            return self.model.step_s(batch / gpus, gpus, job, cluster) - batch / gpus * job["sample_s"]
        return sum(self.model.ring_s(n_bytes, gpus, cluster) for n_bytes, _ in job["buckets"])

    def _efficiency(self, batch: int, gpus: int, job: dict, cluster: dict) -> float:
        if self.weak:
            return batch * job["sample_s"] / self.model.step_s(batch, gpus, job, cluster)
        speed_up = batch * job["sample_s"] / self.model.step_s(batch / gpus, gpus, job, cluster)
        return speed_up / gpus if self.per_gpu else speed_up


_LIMIT_MISTAKES = (
    ({"divided": False}, "With a fixed batch each GPU computes 1/P of it: compare with the computing of one GPU."),
    ({"exposed": True}, "For the crossover count all that is sent, hidden or not, not what sticks out."),
    ({"per_gpu": False}, "Efficiency is the speed-up divided by the number of GPUs."),
    ({"pick": min}, "The most GPUs that still reach the goal, not the fewest."),
    ({"weak": True}, "The batch of all GPUs together is fixed: each gets batch / gpus samples."),
    ({"model": replace(RIGHT, overlap=False)}, "Use your step with overlap for the efficiency."),
)


def _compare_limits(fn: Callable, batch: int, job: dict, cluster: dict, goal: float, most: int) -> None:
    expected = _Limits().find(batch, job, cluster, goal, most)
    got = fn(batch, copy(job), dict(cluster), goal, most)
    shape = "Return two things: the GPUs of the crossover (or None), and the most GPUs that reach the goal."
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(expected, got, shape)
    found = tuple(_whole(number) for number in got)
    if found == expected:
        return
    for change, hint in _LIMIT_MISTAKES:
        wrong = _Limits(**change).find(batch, job, cluster, goal, most)
        if wrong != expected and wrong == found:
            raise Wrong(expected, got, hint)
    told = [(expected[::-1], "The crossover first, then the most GPUs.")]
    if expected[0] is not None:
        told.append(
            ((expected[0] // 2, expected[1]), "The crossover is the first number at which sending takes longer.")
        )
    told.append(((expected[0], 2 * expected[1]), "That many no longer reach the goal: it is the first that misses it."))
    if found[1] == expected[1]:
        told.append(
            (found, "The efficient number is right. Look at the crossover: sum of all-reduces against computing.")
        )
    expect(found, expected, hint=shape if None in found[1:] else "", mistakes=told)


def _whole(number: Any) -> Any:
    """A whole number of NumPy or a float as Python's own."""
    try:
        return int(number) if int(number) == number else number
    except (TypeError, ValueError):
        return number


_LIMIT_HINTS = (
    "Try 1, 2, 4, … up to most; each GPU has batch / gpus samples.",
    "Crossover: the first number for which the sum of all rings exceeds batch / gpus * sample_s.",
    "Efficiency: batch * sample_s / (gpus * step_s(batch / gpus, gpus, job, cluster)).",
)
EXERCISE = Exercise(
    name="scaling_limits",
    chapter="11",
    cases=(
        case("A U-Net with 64 samples on thick links", _compare_limits, 64, UNET, FAT, 0.8, 512),
        case("A ResNet with 8,192 images over Ethernet", _compare_limits, 8192, RESNET, THIN, 0.9, 2048),
        case("A small batch, of which half the efficiency is enough", _compare_limits, 256, RESNET, THIN, 0.5, 512),
        case("So few GPUs that computing always takes longer", _compare_limits, 4096, UNET, FAT, 0.95, 8),
    ),
    hints=_LIMIT_HINTS,
)
