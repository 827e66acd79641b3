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


@dataclass(frozen=True)
class Format:
    """A binary format with a sign, an exponent and a fraction; subnormals reach below the smallest normal number.

    Attributes:
        name: as in a recipe.
        exponent_bits: decide the range.
        fraction_bits: decide the spacing.
    """

    name: str
    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self) -> int:
        """Of one number, sign included."""
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def _largest_exponent(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        """Anything above, by half a spacing or more, is infinite."""
        return (2 - 2.0**-self.fraction_bits) * 2.0**self._largest_exponent

    @property
    def smallest_normal(self) -> float:
        """Below it every halving of a number costs a bit of its fraction."""
        return 2.0 ** (1 - self._largest_exponent)

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


@dataclass(frozen=True)
class Fates:
    """Shares of some numbers, by what a format makes of them; they add up to 1.

    Attributes:
        zero: too small, and 0 from now on; those that were 0 before, too.
        subnormal: kept with fewer digits.
        normal: kept with all digits the format has.
        infinite: too large.
    """

    zero: float
    subnormal: float
    normal: float
    infinite: float


def fates(sorted_magnitudes: Sequence[float], form: Format, scale: float = 1.0) -> Fates:
    """What becomes of numbers that are multiplied by a power of two and then rounded to a format.

    Args:
        sorted_magnitudes: absolute values in rising order, finite; at least one.
        form: rounded to the nearest number, to the even one of two.
        scale: a power of two, so that it changes no digit.
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
