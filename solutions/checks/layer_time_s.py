"""Checks of chapter 00's exercise: the time of a linear layer from its shape and two peaks.

A layer of ``n_in`` inputs and ``n_out`` outputs on a batch of B samples does 2 B n_in n_out FLOP, and moves inputs,
weights and outputs once each. Its time is bounded by whichever of the two takes longer (the roofline).
"""

from collections.abc import Callable

from dltutorial.course.checks import Exercise
from dltutorial.course.checks.cases import case
from dltutorial.course.checks.expect import expect_close

Layer = tuple[int, int, int, int, float, float]  # batch, n_in, n_out, bytes per value, FLOP/s, bytes/s


def _parts(layer: Layer) -> tuple[float, float]:
    """Seconds for the arithmetic, seconds for the bytes."""
    batch, n_in, n_out, value_bytes, flop_per_s, bytes_per_s = layer
    n_values = batch * n_in + n_in * n_out + batch * n_out
    return 2 * batch * n_in * n_out / flop_per_s, n_values * value_bytes / bytes_per_s


def _mistakes(layer: Layer) -> list[tuple[float, str]]:
    batch, n_in, n_out, value_bytes, flop_per_s, bytes_per_s = layer
    compute_s, memory_s = _parts(layer)
    x, w, y = (n * value_bytes / bytes_per_s for n in (batch * n_in, n_in * n_out, batch * n_out))
    flop, n_bytes = compute_s * flop_per_s, memory_s * bytes_per_s
    return [
        (max(compute_s / 2, memory_s), "Every weight is multiplied and then added: that is 2 FLOP, not 1."),
        (compute_s + memory_s, "Arithmetic and memory work at the same time: take the longer, not the sum."),
        (min(compute_s, memory_s), "That is only the quicker of two limits. The slower one decides: take the max."),
        (max(compute_s, x + y), "The weights have to come from memory, too."),
        (max(compute_s, w), "Inputs and outputs travel as well as the weights."),
        (max(compute_s, x + w), "The outputs have to be written."),
        (max(compute_s, w + y), "The inputs have to be read."),
        (max(compute_s, x + batch * w + y), "The whole batch shares one reading of the weights."),
        (max(compute_s, memory_s / value_bytes), "Memory moves bytes: each value has bytes_per_value of them."),
        (max(compute_s, 4 * memory_s / value_bytes), "A value has bytes_per_value bytes, not always 4."),
        (max(compute_s, 8 * memory_s), "The bandwidth is in bytes per second, not in bits."),
        (1e3 * max(compute_s, memory_s), "Return seconds, not milliseconds."),
        (max(compute_s / batch, memory_s), "Every sample of the batch goes through all the weights: count them all."),
        (max(flop / bytes_per_s, n_bytes / flop_per_s), "The two peaks are swapped: FLOP go with FLOP per second."),
        (max(1 / compute_s, 1 / memory_s), "That is one over a time. Divide the amount by the rate."),
        (min(1 / compute_s, 1 / memory_s), "That is one over a time. Divide the amount by the rate."),
    ]


def _compare(fn: Callable, layer: Layer) -> None:
    expected = max(_parts(layer))
    mistakes = [(value, hint) for value, hint in _mistakes(layer) if abs(value / expected - 1) > 2e-4]
    expect_close(fn(*layer), expected, mistakes=mistakes)


_CASES = (
    case("a large batch in float32: arithmetic decides", _compare, (1024, 2048, 4096, 4, 2e11, 1e14)),
    case("one sample in float32: the weights decide", _compare, (1, 4096, 2048, 4, 1e15, 4e10)),
    case("one sample in bfloat16", _compare, (1, 4096, 2048, 2, 4e11, 4e10)),
    case("few inputs, many outputs, a large batch: the outputs count", _compare, (8192, 2, 4096, 4, 2e11, 4e10)),
    case("many inputs, few outputs, a large batch: the inputs count", _compare, (8192, 4096, 2, 4, 2e11, 4e10)),
    case("a batch of 64 on an A100's published peaks", _compare, (64, 8192, 8192, 2, 312e12, 1555e9)),
)
_HINTS = (
    "Write down two times: one that computing takes, one that moving takes. Which of them counts?",
    "Of how many products is one of the batch × n_out results the sum? A multiplication and an addition are 2 FLOP.",
    "Which three matrices are moved, and how many values has each?",
)
_CODE = (
    "flop = 2 * batch * n_in * n_out",
    "n_bytes = bytes_per_value * (batch * n_in + n_in * n_out + batch * n_out)",
)
EXERCISE = Exercise(name="layer_time_s", chapter="00", cases=_CASES, hints=_HINTS, code=_CODE)
