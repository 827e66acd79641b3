"""The explorer of chapter 08: the time of five all-reduces against the bytes of the vector.

The input is the prices of messages and bytes. The output is an explorer with two logarithmic axes: bytes, and seconds.
The model is ``comm.cost``.

    A  the all-reduce    N  the size of the vector
"""

from typing import Any

import numpy as np

from dltutorial.comm.collectives import ALL_REDUCES
from dltutorial.comm.cost import Prices, Regimes, counts
from dltutorial.course.explorers.explorer import Explorer, choice, geometric, size, slider, whole
from dltutorial.profile.timing import duration

LINKS = ("a link for each rank", "one lane for all")
_BYTES_N = np.geomspace(16, 2**32, 1401)
_DRAWN = slice(None, None, 25)  # every 25th size is drawn; all of them locate the points where the fastest one changes
_STYLES = ("-", "--", (0, (8, 1, 1, 1)), ":", "-.")


def allreduce(prices: Prices | Regimes, ranks: int = 4, node_size: int = 8) -> Explorer:
    """Return an explorer of the vector, the ranks and the prices.

    Args:
        prices: Where the sliders start. Of two regimes, the start is the prices of large messages, for which the price
            of a byte matters. With one lane, all messages share it.
        ranks: The number of ranks at the start, at least 2.
        node_size: Ranks on a node for the hierarchical all-reduce.
    """
    start = prices.large if isinstance(prices, Regimes) else prices

    def draw(ax: Any, values: Any) -> str:
        n_lanes = values.ranks if values.links == LINKS[0] else 1
        moved = Prices(1e-6 * values.latency, 1e-9 / values.bandwidth, 1e-9 / values.adding, n_lanes)
        intercept_A1, slope_A1 = _linear_costs(moved, values.ranks, values.node)
        seconds_AN = intercept_A1 + slope_A1 * _BYTES_N
        for name, seconds_N, style in zip(ALL_REDUCES, seconds_AN, _STYLES, strict=True):
            ax.plot(_BYTES_N[_DRAWN], seconds_N[_DRAWN], ls=style, label=name)
        seconds_A = (intercept_A1 + slope_A1 * values.n_bytes)[:, 0]
        fastest_first = sorted(zip(seconds_A, ALL_REDUCES, strict=True))
        ax.axvline(values.n_bytes, color="black", ls="--", lw=1)
        ax.plot(values.n_bytes, fastest_first[0][0], "D", color="black")
        ax.set(xscale="log", yscale="log", ylabel="seconds", xlabel="bytes of the message")
        ax.legend(loc="upper left")
        times = ", ".join(f"{name} {duration(seconds)}" for seconds, name in fastest_first)
        (_, smallest), *changes = _fastest(seconds_AN)
        rest = "".join(f"; from {size(n_bytes)} on {names}" for n_bytes, names in changes)
        return (
            f"{size(values.n_bytes)} on {values.ranks:,} ranks, quickest first: {times}. Quickest for the smallest "
            f"messages is {smallest}{rest}."
        )

    alpha_us = 1e6 * start.message_s
    gigabytes_per_s = 1e-9 / max(start.byte_s, 1e-15)
    added_gigabytes_per_s = 1e-9 / max(start.reduced_byte_s, 1e-15)
    speeds = geometric(0.01, 1000)
    return Explorer(
        "Time of an all-reduce against its bytes",
        draw,
        n_bytes=slider("Message", "The vector that every rank holds.", 2**20, geometric(16, 2**32), text=size),
        ranks=slider("Ranks", "How many take part.", ranks, whole(2, 4096)),
        latency=slider("Latency α", "Of one message, however small.", alpha_us, geometric(0.1, 1e5), "µs"),
        bandwidth=slider("Bandwidth β", "What a link, or the lane, carries.", gigabytes_per_s, speeds, "GB/s"),
        adding=slider("Adding 1/γ", "What a rank adds to others in a second.", added_gigabytes_per_s, speeds, "GB/s"),
        links=choice("Links", "Whether all ranks send at once, or through one.", LINKS, LINKS[start.lanes == 1]),
        node=slider("Ranks on a node", "For the hierarchical one: trees inside, a ring out.", node_size, whole(1, 64)),
    )


def _linear_costs(prices: Prices, ranks: int, node_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a and b in the cost a + b n of each all-reduce for n bytes, as columns with one row per all-reduce."""
    seconds = []
    for n_bytes in (0, 1):
        seconds.append([prices.seconds(counts(name, ranks, n_bytes, node_size)) for name in ALL_REDUCES])
    zero_A, one_A = np.array(seconds)
    return zero_A[:, None], (one_A - zero_A)[:, None]


def _fastest(seconds_AN: np.ndarray) -> list[tuple[float, str]]:
    """Return pairs of a number of bytes, and the all-reduces that are the fastest from there on."""
    is_fastest_AN = seconds_AN <= seconds_AN.min(0) * (1 + 1e-9)
    changes = np.flatnonzero((is_fastest_AN[:, 1:] != is_fastest_AN[:, :-1]).any(0)) + 1
    names_A = np.array(list(ALL_REDUCES))
    return [(float(_BYTES_N[n]), " = ".join(names_A[is_fastest_AN[:, n]])) for n in (0, *changes)]
