"""What a floating-point format can hold: its range and the spacing of its numbers.

In: how many bits a format spends on exponent and fraction. Out: its largest and smallest number, and the distance from
any number to the next. IEEE 754-2019, section 3; tf32 as in NVIDIA's A100 white paper (2020): 19 bits, kept in 32.
"""

import math
from collections.abc import Mapping
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


FORMATS: Mapping[str, Format] = MappingProxyType({
    form.name: form
    for form in (Format("fp32", 8, 23), Format("tf32", 8, 10), Format("bf16", 8, 7), Format("fp16", 5, 10))
})  # fmt: skip
