"""Add up the traffic that the ranks have counted."""

from dltutorial.comm.cost import Counts


def tally(traffic):
    """Return the counts of a run from the counters of all its ranks.

    The rounds and the bytes on the longest path are those of the busiest rank. Messages and bytes are sums over ranks.
    """
    ranks = list(traffic)
    return Counts(
        *(max(getattr(rank, name) for rank in ranks) for name in ("rounds", "path_bytes", "reduced_bytes")),
        *(sum(getattr(rank, name) for rank in ranks) for name in ("messages", "sent_bytes", "reduced_bytes")),
    )
