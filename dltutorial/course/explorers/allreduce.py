"""Time of an all-reduce against the bytes, by algorithm, with ranks and prices to move.

In: the prices that a machine's collectives were fitted with. Out: a line for each algorithm, and the sizes at which the
lead changes. Model: ``dltutorial.comm.quickest``, on the α–β–γ prices of ``cost``.
"""

from collections.abc import Mapping

from dltutorial.comm.cost import Prices, Regimes
from dltutorial.comm.quickest import Line, leads, lines
from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Choice, Drawing, Explorer, Slider
from dltutorial.course.explorers.words import size, span
from dltutorial.errors import CourseError

OWN, SHARED = "a link for each rank", "one lane for all"
_KIB = 2**10
_BYTES = (16.0, 2.0**32)  # ends of the axis
_LOOKS = {
    "ring": (svg.BLUE, svg.SOLID, 3.5),
    "tree": (svg.GREEN, svg.DASHED, 2.5),
    "doubling": (svg.RED, "12 3", 2.5),
    "server": (svg.GREY, svg.DOTTED, 2.5),
    "hierarchical": ("currentColor", "10 3 2 3", 1.5),
}


def allreduce(prices: Prices | Regimes, ranks: int = 4, node_size: int = 8) -> None:
    """Show what all-reduces cost at a machine's prices; arguments as of :func:`make`."""
    make(prices, ranks, node_size).explore()


def make(prices: Prices | Regimes, ranks: int = 4, node_size: int = 8) -> Explorer:
    """Five all-reduces at prices to move.

    Args:
        prices: where the sliders start. Of two regimes α is that of the small messages, as always, and the bytes cost
            what they cost in the large ones, where they matter. With one lane all messages share it.
        ranks: that the number of ranks starts with.
        node_size: ranks on a node, for the hierarchical one.

    Raises:
        CourseError: fewer than two ranks, or something that is no prices.
    """
    if isinstance(prices, Regimes):
        prices = prices.large
    if not isinstance(prices, Prices):
        raise CourseError(f"prices are {prices!r}; pass what cost.fit or cost.fit_regimes returned")
    if not ranks >= 2:
        raise CourseError(f"ranks={ranks!r}: one rank alone has nothing to reduce; give 2 or more")

    def draw(kib: float, ranks: int, latency: float, bandwidth: float, adding: float, lanes: str, node: int) -> Drawing:
        moved = Prices(1e-6 * latency, 1e-9 / bandwidth, 1e-9 / adding, 1 if lanes == SHARED else ranks)
        found = lines(moved, ranks, node)
        return Drawing(_words(found, kib * _KIB, ranks), _picture(found, kib * _KIB))

    controls = [
        Slider("kib", "Message", value=1024, low=_BYTES[0] / _KIB, high=2**21, log=True, unit="KiB",
               help="Bytes of the vector that every rank holds."),
        Slider("ranks", "Ranks", value=min(ranks, 4096), low=2, high=4096, log=True, integer=True,
               help="How many take part."),
        Slider("latency", "Latency α", **_start(1e6 * prices.message_s, 0.1, 1e5), unit="µs",
               help="Seconds of one message, however small."),
        Slider("bandwidth", "Bandwidth β", **_start(1e-9 / max(prices.byte_s, 1e-15), 0.01, 1000), unit="GB/s",
               help="Bytes that a link, or the lane, carries in a second."),
        Slider("adding", "Adding 1/γ", **_start(1e-9 / max(prices.reduced_byte_s, 1e-15), 0.01, 1000), unit="GB/s",
               help="Bytes that a rank adds to others in a second."),
        Choice("lanes", "Links", (OWN, SHARED), value=SHARED if prices.lanes == 1 else OWN,
               help="Whether all ranks send at once, or everything passes one processor."),
        Slider("node", "Ranks on a node", value=min(max(node_size, 1), 64), low=1, high=64, log=True, integer=True,
               help="For the hierarchical one: trees inside the nodes, a ring between them."),
    ]  # fmt: skip
    return Explorer("Time of an all-reduce against its bytes", controls, draw)


def example() -> Explorer:
    """A small cluster: 32 ranks, 20 µs a message, 5 GB/s."""
    return make(Prices(20e-6, 1 / 5e9, 1 / 20e9, lanes=32), ranks=32)


def _start(value: float, low: float, high: float) -> Mapping[str, float]:
    """A logarithmic slider that starts at a price; a fit may give 0, and begins at an end then."""
    return {"value": min(max(value, low), high), "low": low, "high": high, "log": True}


def _leaders(found: Mapping[str, Line]) -> list[tuple[float, str]]:
    """(bytes, names) from which on they are quickest; those that cost the same share the lead."""
    order = []
    for start, _ in leads(found):
        n_bytes = max(1.01 * start, _BYTES[0])
        least_s = min(line.seconds(n_bytes) for line in found.values())
        names = " = ".join(name for name, line in found.items() if line.seconds(n_bytes) <= least_s * (1 + 1e-9))
        if not order or names != order[-1][1]:
            order.append((start, names))
    return [(start, names) for start, names in order if start < _BYTES[1]]


def _words(found: Mapping[str, Line], n_bytes: float, ranks: int) -> str:
    times = {name: line.seconds(n_bytes) for name, line in found.items()}
    order, slow = _leaders(found), max(times, key=times.__getitem__)
    quick = [names for start, names in order if start <= n_bytes][-1]
    others = [name for name in ("ring", "hierarchical") if name not in (slow, *quick.split(" = "))]
    told = "".join(f"{name} takes {span(times[name])}, " for name in others)
    change = "; ".join(f"from {size(start)} on {names}" for start, names in order[1:])
    return (
        f"{size(n_bytes)} on {ranks:,} ranks: quickest is {quick}, {span(min(times.values()))}; {told}{slow} is "
        f"slowest with {span(times[slow])}. Quickest for the smallest messages is {order[0][1]}"
        f"{'; ' if change else ''}{change}."
    )


def _picture(found: Mapping[str, Line], n_bytes: float) -> list[str]:
    """A line for each, the message as a dashed line, and along the bottom who leads where."""
    low = min(line.seconds(_BYTES[0]) for line in found.values())
    high = max(line.seconds(_BYTES[1]) for line in found.values())
    axes = svg.Axes(
        _BYTES, (low / 8, high * 1.5), log_x=True, log_y=True, labels=("bytes of the message", "seconds"),
        ticks_x={2.0**n: size(2.0**n) for n in (10, 20, 30)},
    )  # fmt: skip
    sizes = [_BYTES[0] * (_BYTES[1] / _BYTES[0]) ** (n / 56) for n in range(57)]
    curves = [axes.curve([(n, found[name].seconds(n)) for n in sizes], *look) for name, look in _LOOKS.items()]
    key = [(svg.line([(-14, 0), (14, 0)], *look), name) for name, look in _LOOKS.items()]
    best_s = min(line.seconds(n_bytes) for line in found.values())
    return [
        *axes.frame(),
        *curves,
        axes.upright(n_bytes, "currentColor"),
        svg.diamond(axes.x(n_bytes), axes.y(best_s), svg.RED),
        *_reigns(axes, _leaders(found)),
        *svg.legend(key, axes.left + 24, axes.top + 12),
    ]


def _reigns(axes: svg.Axes, order: list[tuple[float, str]]) -> list[str]:
    """The name of the quickest between two changes, as far as there is room for it."""
    edges = [axes.x(max(start, _BYTES[0])) for start, _ in order] + [axes.right]
    parts = []
    for (_, name), left, right in zip(order, edges[:-1], edges[1:], strict=True):
        if axes.left < left < axes.right:
            parts.append(svg.line([(left, axes.bottom - 22), (left, axes.bottom)], "currentColor", width=2))
        if right - left > 8 * len(name):
            parts.append(svg.text((left + right) / 2, axes.bottom - 7, name, anchor="middle", bold=True))
    return parts
