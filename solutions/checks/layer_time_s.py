"""Checks of chapter 00's exercise: the time of a linear layer from its shape and two peaks.

A layer of ``n_in`` inputs and ``n_out`` outputs on a batch of B samples does 2 B n_in n_out FLOP, and moves inputs,
weights and outputs once each. The longer of the two times is the time of the layer, by the roofline model. A known
mistake is another formula. A learner gets its hint if it gives exactly the learner's number.

Source: Williams et al. 2009, doi:10.1145/1498765.1498785
"""

from collections.abc import Callable
from typing import NamedTuple

from dltutorial.course.checks import Exercise
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close


class Layer(NamedTuple):
    """The arguments of the learner's function, in their order."""

    batch: int
    n_in: int
    n_out: int
    value_bytes: int
    flop_per_s: float
    bytes_per_s: float

    @property
    def flop(self) -> int:
        """The work of the layer."""
        return 2 * self.batch * self.n_in * self.n_out

    def move_s(self, n_values: int) -> float:
        """Return the seconds in which the memory moves so many values."""
        return n_values * self.value_bytes / self.bytes_per_s


def _mistakes(layer: Layer) -> list[tuple[float, str]]:
    """Return the times of known mistakes."""
    batch = layer.batch
    value_bytes = layer.value_bytes
    compute_s = layer.flop / layer.flop_per_s
    x = layer.move_s(batch * layer.n_in)
    w = layer.move_s(layer.n_in * layer.n_out)
    y = layer.move_s(batch * layer.n_out)
    memory_s = x + w + y
    swapped_compute_s = layer.flop / layer.bytes_per_s
    swapped_memory_s = memory_s * layer.bytes_per_s / layer.flop_per_s
    return [
        (max(compute_s / 2, memory_s), "Each weight needs a multiplication and an addition. That is 2 FLOP, not 1."),
        (compute_s + memory_s, "Computing and moving happen together. Take the longer time, not the sum."),
        (min(compute_s, memory_s), "You took the quicker of two times, or only one of them. The longer time counts."),
        (max(compute_s, x + y), "The weights have to come from the memory, too."),
        (max(compute_s, w), "Inputs and outputs also move, not only the weights."),
        (max(compute_s, x + w), "The outputs have to be written to the memory."),
        (max(compute_s, w + y), "The inputs have to be read from the memory."),
        (max(compute_s, x + batch * w + y), "The whole batch shares one reading of the weights."),
        (max(compute_s, memory_s / value_bytes), "Memory moves bytes, and each value has bytes_per_value bytes."),
        (max(compute_s, 4 * memory_s / value_bytes), "A value has bytes_per_value bytes, not always 4."),
        (max(compute_s, 8 * memory_s), "The bandwidth is in bytes per second, not in bits."),
        (1e3 * max(compute_s, memory_s), "Return seconds, not milliseconds."),
        (max(compute_s / batch, memory_s), "Every sample of the batch needs all the weights for its FLOP."),
        (max(swapped_compute_s, swapped_memory_s), "The two peaks are swapped. Divide FLOP by FLOP per second."),
        (max(1 / compute_s, 1 / memory_s), "This is one over a time. Divide the amount by the rate."),
        (min(1 / compute_s, 1 / memory_s), "This is one over a time. Divide the amount by the rate."),
    ]


def _check(fn: Callable, layer: Layer) -> None:
    """The answer must be the longer of the two times."""
    n_values = layer.batch * layer.n_in + layer.n_in * layer.n_out + layer.batch * layer.n_out
    expected = max(layer.flop / layer.flop_per_s, layer.move_s(n_values))
    expect_close(fn(*layer), expected, mistakes=_mistakes(layer))


def _case(name: str, layer: Layer) -> Callable[[Callable], None]:
    """Return a case whose name shows the arguments, so that the learner can try the same call."""
    arguments = ", ".join(f"{value:g}" for value in layer)
    return case(f"{name}. The arguments are ({arguments})", _check, layer)


_CASES = (
    _case("a large batch in float32: the arithmetic is the limit", Layer(1024, 2048, 4096, 4, 2e11, 1e14)),
    _case("one sample in float32: the weights are the limit", Layer(1, 4096, 2048, 4, 1e15, 4e10)),
    _case("one sample in bfloat16", Layer(1, 4096, 2048, 2, 4e11, 4e10)),
    _case("few inputs, many outputs, a large batch: the outputs count", Layer(8192, 2, 4096, 4, 2e11, 4e10)),
    _case("many inputs, few outputs, a large batch: the inputs count", Layer(8192, 4096, 2, 4, 2e11, 4e10)),
    _case("a batch of 64 on an A100's published peaks", Layer(64, 8192, 8192, 2, 312e12, 1555e9)),
)
_HINTS = (
    "Write down two times, one for the arithmetic and one for the bytes. Which of them counts?",
    "Each of the batch × n_out results is a sum. How many products does it add? A product and its addition are 2 FLOP.",
    "Three matrices move. How many values does each matrix have?",
)
_CODE = (
    "flop = 2 * batch * n_in * n_out",
    "n_bytes = bytes_per_value * (batch * n_in + n_in * n_out + batch * n_out)",
)
EXERCISE = Exercise(name="layer_time_s", chapter="00", cases=_CASES, hints=_HINTS, code=_CODE)
