"""What a floating-point format can hold: its range and the spacing of its numbers.

In: how many bits a format spends on exponent and fraction. Out: its largest and smallest number, the distance from
any number to the next, and what becomes of given numbers. IEEE 754-2019, section 3; tf32 as in NVIDIA's A100 white
paper (2020): 19 bits, kept in 32.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


@dataclass(frozen=True)
class Format:
    """A binary format with a sign, an exponent and a fraction; subnormals reach below the smallest normal number."""

    name: str  # as in a recipe
    exponent_bits: int  # decide the range
    fraction_bits: int  # decide the spacing

    @property
    def bits(self) -> int:
        """Of one number, sign included."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def smallest_normal(self) -> float:
        """Below it every halving of a number costs a bit of its fraction."""
        return 2.0 ** (2 - 2 ** (self.exponent_bits - 1))

    @property
    def largest(self) -> float:
        """Anything above, by half a spacing or more, is infinite."""
        return (2 - 2.0**-self.fraction_bits) * 2 / self.smallest_normal

    @property
    def smallest(self) -> float:
        """The smallest subnormal; half of it and less becomes 0."""
        return self.smallest_normal * 2.0**-self.fraction_bits

    def spacing(self, x: float) -> float:
        """From ``x`` to the next number away from 0; infinite beyond the largest."""
        if abs(x) > self.largest:
            return math.inf
        exponent = math.floor(math.log2(max(abs(x), self.smallest_normal)))
        return 2.0 ** (exponent - self.fraction_bits)


class Fates(NamedTuple):
    """Shares of some numbers, by what a format makes of them; they add up to 1."""

    zero: float  # too small, and 0 from now on; those that were 0 before, too
    subnormal: float  # kept with fewer digits
    normal: float  # kept with all digits the format has
    infinite: float  # too large


def fates(sorted_magnitudes: Sequence[float], form: Format, scale: float = 1.0) -> Fates:
    """What becomes of numbers, given by their magnitudes in rising order, when they are rounded to a format.

    Before, they are multiplied by ``scale``, a power of two, which changes no digit.
    """
    n = len(sorted_magnitudes)
    lost = bisect_right(sorted_magnitudes, form.smallest / 2 / scale)
    short = bisect_left(sorted_magnitudes, (form.smallest_normal - form.smallest / 2) / scale)
    held = bisect_left(sorted_magnitudes, (form.largest + form.spacing(form.largest) / 2) / scale)
    return Fates(lost / n, (short - lost) / n, (held - short) / n, (n - held) / n)


FORMATS: Mapping[str, Format] = MappingProxyType({
    form.name: form
    for form in (Format("fp32", 8, 23), Format("tf32", 8, 10), Format("bf16", 8, 7), Format("fp16", 5, 10))
})  # fmt: skip
