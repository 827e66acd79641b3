"""How much of a trace's communication runs while something is computed?

In: a trace of one rank. Out: seconds of communication, and the share of them that computing hides. Gloo's all-reduces
appear as ranges on threads of their own, NCCL's as kernels on a stream of their own. Computing is what autograd does
on the host, or any other kernel on a GPU.
"""

from dataclasses import dataclass

from dltutorial.profile.events import Event, Trace, intervals, length, without


@dataclass(frozen=True)
class Overlap:
    """Communication in a trace.

    Attributes:
        n_messages: collectives.
        communication_s: in which at least one of them ran.
        hidden_s: of those, in which something was computed too.
    """

    n_messages: int
    communication_s: float
    hidden_s: float

    @property
    def hidden_share(self) -> float:
        """From 0, all of it waited for, to 1; 0 without communication."""
        return self.hidden_s / self.communication_s if self.communication_s else 0.0


def overlap(trace: Trace) -> Overlap:
    """Lay communication beside computing."""
    sent = intervals(event for event in trace.events if is_communication(event))
    if any(event.category == "kernel" for event in trace.events):
        computing = [event for event in trace.events if event.category == "kernel" and not is_communication(event)]
    else:
        computing = [event for event in trace.events if _is_of_autograd(event)]
    sent_s = length(sent)
    return Overlap(len(sent), sent_s, sent_s - length(without(sent, intervals(computing))))


def is_communication(event: Event) -> bool:
    """A collective at work, of gloo or NCCL."""
    return event.name.startswith("gloo:") or (event.category == "kernel" and event.name.startswith("nccl"))


def _is_of_autograd(event: Event) -> bool:
    """A node of the backward pass on the host; not the one in which our hooks copy and send."""
    is_node = event.name.startswith("autograd::engine::evaluate_function")
    return is_node and not event.name.endswith("AccumulateGrad")
