"""Which all-reduce is quickest for which number of bytes?

In: prices of a machine and a number of ranks. Out: what each all-reduce costs, as a straight line over the bytes, and
the sizes at which the lead changes. With single prices every collective costs a + b n seconds for n bytes, so the
changes are crossings of lines, exact. Prices and counts: ``cost``, ``counts``.

The model lets a rank take all messages of one round at once. A parameter server cannot quite: with many ranks it is
slower for small messages than said here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dltutorial.comm.collectives import ALL_REDUCES
from dltutorial.comm.cost import Prices
from dltutorial.comm.counts import counts
from dltutorial.errors import CourseError


@dataclass(frozen=True)
class Line:
    """Seconds of a collective: a part that does not depend on the bytes, and seconds of a byte."""

    fixed_s: float
    byte_s: float

    def seconds(self, n_bytes: float) -> float:
        """Of a tensor of so many bytes."""
        return self.fixed_s + n_bytes * self.byte_s


def lines(prices: Prices, ranks: int, node_size: int = 0) -> dict[str, Line]:
    """What each of the course's all-reduces costs on so many ranks; ``node_size`` as for ``counts``."""
    found = {}
    for name in ALL_REDUCES:
        fixed_s, one_s = (prices.seconds(counts(name, ranks, n_bytes, node_size)) for n_bytes in (0.0, 1.0))
        found[name] = Line(fixed_s, one_s - fixed_s)
    return found


def leads(found: Mapping[str, Line]) -> list[tuple[float, str]]:
    """(bytes, name): from so many bytes on, this one is quickest; the first begins at 0.

    Raises:
        CourseError: nothing to choose from.
    """
    if not found:
        raise CourseError("no collective to choose from; give the line of at least one")
    name = min(found, key=lambda name: (found[name].fixed_s, found[name].byte_s))
    order = [(0.0, name)]
    while later := {other: crossing(found[name], found[other]) for other in found
                    if found[other].byte_s < found[name].byte_s}:  # fmt: skip
        # Of those that cross at the same place, the flattest leads from there on.
        name = min(later, key=lambda other: (later[other], found[other].byte_s))
        order.append((later[name], name))
    return order


def crossing(steep: Line, flat: Line) -> float:
    """Bytes from which on the second, flatter line is the lower one."""
    return (flat.fixed_s - steep.fixed_s) / (steep.byte_s - flat.byte_s)
