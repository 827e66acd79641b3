"""The explorer of chapter 08: the time of five all-reduces against the bytes of the vector.

The input is the prices of messages and bytes. The output is an explorer with two logarithmic axes: bytes, and seconds.
The model is ``scaling.collective_cost``.

    A  the all-reduce    N  the size of the vector
"""

from typing import Any

import numpy as np

from dltutorial.course.explorers.explorer import Explorer, choice, log_slider, power_slider, size
from dltutorial.profile.timing import duration
from dltutorial.scaling.collective_cost import Prices, counts

ALL_REDUCES = ("ring", "tree", "doubling", "server", "hierarchical")
_BYTES_N = 2.0 ** np.arange(4, 32.1, 0.5)
_STYLES = ("-", "--", (0, (8, 1, 1, 1)), ":", "-.")
_LINKS = (("one for each rank", True), ("one lane for all", False))


def costs(prices: Prices, ranks: int, node_size: int, n_bytes_N: np.ndarray) -> np.ndarray:
    """Return the seconds of each all-reduce for each size, as an array (A, N)."""
    seconds_AN = [[prices.seconds(counts(name, ranks, n, node_size)) for n in n_bytes_N] for name in ALL_REDUCES]
    return np.array(seconds_AN)


def allreduce(prices: Prices, ranks: int) -> Explorer:
    """Return an explorer of the vector, the ranks and the prices.

    Args:
        prices: Where the sliders start.
        ranks: The number of ranks at the start, at least 2.
    """

    def draw(ax: Any, n_bytes: float, ranks: int, latency: float, bandwidth: float, links: bool, node: int) -> str:
        lanes = ranks if links else 1
        moved = Prices(1e-6 * latency, 1e-9 / bandwidth, lanes)
        seconds_AN = costs(moved, ranks, node, _BYTES_N)
        for name, seconds_N, style in zip(ALL_REDUCES, seconds_AN, _STYLES, strict=True):
            ax.loglog(_BYTES_N, seconds_N, ls=style, label=name)
        ax.axvline(n_bytes, color="black", ls="--", lw=1)
        ax.set(ylabel="seconds", xlabel="bytes of the message")
        ax.legend(loc="upper left")
        seconds_A = costs(moved, ranks, node, np.array([n_bytes]))[:, 0]
        times = [f"{name} {duration(seconds)}" for seconds, name in sorted(zip(seconds_A, ALL_REDUCES, strict=True))]
        ranges = ", ".join(f"{name} from {size(n)} on" for n, name in fastest(seconds_AN))
        return f"{size(n_bytes)} on {ranks:,} ranks: {', '.join(times)}. The fastest for each size: {ranges}."

    return Explorer(
        draw,
        n_bytes=log_slider("Message [bytes]", 2**20, 16, 2**32),
        ranks=power_slider("Ranks", ranks, 2, 4096),
        latency=log_slider("Latency α [µs]", 1e6 * prices.message_s, 0.1, 1e5),
        bandwidth=log_slider("Bandwidth β [GB/s]", 1e-9 / max(prices.byte_s, 1e-15), 0.01, 1000),
        links=choice("Links", _LINKS, prices.lanes > 1),
        node=power_slider("Ranks on a node", 8, 1, 64),
    )


def fastest(seconds_AN: np.ndarray) -> list[tuple[float, str]]:
    """Return pairs of a number of bytes, and the all-reduces that are the fastest from there on."""
    is_fastest_AN = seconds_AN <= seconds_AN.min(0) * (1 + 1e-9)
    names_N = [" = ".join(np.array(ALL_REDUCES)[fast_A]) for fast_A in is_fastest_AN.T]
    changes = [n for n, name in enumerate(names_N) if n == 0 or name != names_N[n - 1]]
    return [(_BYTES_N[n], names_N[n]) for n in changes]
