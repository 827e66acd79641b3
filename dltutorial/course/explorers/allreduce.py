"""Time of an all-reduce against the bytes, by algorithm, with ranks and prices to move."""

from typing import Any

import numpy as np

from dltutorial.comm.collectives import ALL_REDUCES
from dltutorial.comm.cost import Prices, Regimes
from dltutorial.comm.counts import counts
from dltutorial.course.explorers.explorer import Explorer, choice, geometric, size, slider, span, whole

LINKS = ("a link for each rank", "one lane for all")
_BYTES_N = np.geomspace(16, 2**32, 1401)
_STYLES = ("-", "--", (0, (8, 1, 1, 1)), ":", "-.")


def allreduce(prices: Prices | Regimes, ranks: int = 4, node_size: int = 8) -> Explorer:
    """Five all-reduces at prices to move. Model: ``comm.counts``, priced by ``comm.cost``.

    Args:
        prices: where the sliders start. Of two regimes α is that of the small messages, as always, and the bytes cost
            what they cost in the large ones, where they matter. With one lane all messages share it.
        ranks: that the number of ranks starts with, at least 2.
        node_size: ranks on a node, for the hierarchical one.
    """
    start = prices.large if isinstance(prices, Regimes) else prices
    alpha = 1e6 * start.message_s
    beta, gamma = (1e-9 / max(price, 1e-15) for price in (start.byte_s, start.reduced_byte_s))
    return Explorer(
        "Time of an all-reduce against its bytes",
        _draw,
        n_bytes=slider("Message", "The vector that every rank holds.", 2**20, geometric(16, 2**32), text=size),
        ranks=slider("Ranks", "How many take part.", ranks, whole(2, 4096)),
        latency=slider("Latency α", "Of one message, however small.", alpha, geometric(0.1, 1e5), "µs"),
        bandwidth=slider("Bandwidth β", "What a link, or the lane, carries.", beta, geometric(0.01, 1000), "GB/s"),
        adding=slider("Adding 1/γ", "What a rank adds to others in a second.", gamma, geometric(0.01, 1000), "GB/s"),
        links=choice("Links", "Whether all ranks send at once, or through one.", LINKS, LINKS[start.lanes == 1]),
        node=slider("Ranks on a node", "For the hierarchical one: trees inside, a ring out.", node_size, whole(1, 64)),
    )


def _draw(ax: Any, v: Any) -> str:
    prices = Prices(1e-6 * v.latency, 1e-9 / v.bandwidth, 1e-9 / v.adding, v.ranks if v.links == LINKS[0] else 1)
    # With prices fixed, every collective costs a + b n seconds for n bytes.
    a, a_b = (np.array([prices.seconds(counts(name, v.ranks, n, v.node)) for name in ALL_REDUCES]) for n in (0, 1))
    seconds_AN = a[:, None] + (a_b - a)[:, None] * _BYTES_N
    now, order = dict(zip(ALL_REDUCES, a + (a_b - a) * v.n_bytes, strict=True)), leads(seconds_AN)
    for name, seconds_N, style in zip(ALL_REDUCES, seconds_AN, _STYLES, strict=True):
        ax.plot(_BYTES_N[::25], seconds_N[::25], ls=style, label=name)
    ax.axvline(v.n_bytes, color="black", ls="--", lw=1)
    ax.plot(v.n_bytes, min(now.values()), "D", color="black")
    ax.set(xscale="log", yscale="log", ylabel="seconds", xlabel="bytes of the message")
    ax.legend(loc="upper left")
    slow, quick = max(now, key=now.__getitem__), [names for begin, names in order if begin <= v.n_bytes][-1]
    others = [name for name in ("ring", "hierarchical") if name not in (slow, *quick.split(" = "))]
    told = "".join(f"{name} takes {span(now[name])}, " for name in others)
    changes = "".join(f"; from {size(begin)} on {names}" for begin, names in order[1:])
    return (
        f"{size(v.n_bytes)} on {v.ranks:,} ranks: quickest is {quick}, {span(min(now.values()))}; {told}{slow} is "
        f"slowest with {span(now[slow])}. Quickest for the smallest messages is {order[0][1]}{changes}."
    )


def leads(seconds_AN: np.ndarray) -> list[tuple[float, str]]:
    """(bytes, names) from which on these all-reduces are the quickest; those that cost the same share the lead."""
    first_AN = seconds_AN <= seconds_AN.min(0) * (1 + 1e-9)
    changes = np.flatnonzero((first_AN[:, 1:] != first_AN[:, :-1]).any(0)) + 1
    names = np.array(list(ALL_REDUCES))
    return [(float(_BYTES_N[n]), " = ".join(names[first_AN[:, n]])) for n in (0, *changes)]
