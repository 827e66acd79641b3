"""What the ranks' counters of traffic say together."""

from dltutorial.comm.cost import Counts


def tally(traffic):
    """The counts of a run, from the counters of all its ranks."""
    ranks = list(traffic)
    return Counts(
        *(max(getattr(rank, name) for rank in ranks) for name in ("rounds", "path_bytes", "reduced_bytes")),
        *(sum(getattr(rank, name) for rank in ranks) for name in ("messages", "sent_bytes", "reduced_bytes")),
    )
