"""A pipeline by hand: each rank follows its list of acts, and sends the results to the ranks before and behind it.

A model is divided into *stages*, which are groups of consecutive layers. Each rank has one stage or several. A batch is
divided into micro-batches, so that the ranks can work at the same time, each on another micro-batch.

Inputs are the acts of this rank (from the module ``schedules``), its stages, and the micro-batches. The outputs are the
gradients of the stages' weights, the losses, the time of each act, and the largest number of micro-batches that the
rank held at once.

    rank 0               rank 1               rank 2
    stage 0 ─────y─────► stage 1 ─────y─────► stage 2 ───► loss     F: y is the output of a stage
    stage 0 ◄───d_y───── stage 1 ◄───d_y───── stage 2               B: d_y is the gradient of y

For each act a rank receives the input, computes, and starts to send the result. A thread then waits until the send is
complete. The rank itself does not wait, because two ranks that both wait for their sends would be in a deadlock. Each
message has a tag that names its act, so two messages between the same ranks cannot be confused. Gloo supports tags, and
NCCL does not. Torch's own schedules put all messages into one order instead.

The zero-bubble schedule divides the backward pass of a stage in two: B computes the gradient of the stage's input, and
W the gradients of its weights. The module ``postponed_gradients`` prepares stages for this, and computes W.

Legend: x is the input of a stage, and y is its output.

Sources: as in ``schedules``.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.parallel.postponed_gradients import add_weight_gradients
from dltutorial.parallel.schedules import Act, Span

Loss = Callable[[Tensor, int], Tensor]  # (output of the last stage, number of the micro-batch) → loss


class Run(NamedTuple):
    """What one rank did in one step.

    Attributes:
        losses: The loss of each micro-batch, on the rank with the last stage. Empty on the others.
        spans: The times of the acts, in seconds of the monotonic clock. Waiting for messages is not included.
        max_in_flight: The largest number of activations that the rank held at once.
    """

    losses: list[float]
    spans: list[Span]
    max_in_flight: int


def run(
    acts: Sequence[Act],
    stages: Mapping[int, nn.Module],
    n_stages: int,
    shape: Sequence[int],
    micro_batches: Sequence[Tensor],
    loss: Loss,
    min_duration_s: Mapping[str, float] | None = None,
) -> Run:
    """Run one step on this rank. All ranks call this function, each with its own acts.

    Args:
        acts: The acts of this rank, in order.
        stages: The stages of this rank, by number. Stage s is on rank s mod p. If the acts include W, and only then,
            ``postpone_weight_gradients`` has changed the stages.
        n_stages: The number of stages on all ranks together.
        shape: The shape of the float32 tensor that goes from one stage to the next, the same for x, y and their
            gradients.
        micro_batches: The inputs of stage 0, of any shape.
        loss: A function of the last stage's output and the number of the micro-batch. The pipeline adds the gradients
            of all micro-batches, and does not average them. Therefore this function must divide the mean loss of a
            micro-batch by the number of micro-batches. Then the sum is the gradient of the mean over the batch.
        min_duration_s: Sleep up to this time, to emulate a slower device. One time for each kind of act.

    Returns:
        The losses, the times of the acts, and the largest number of activations.
    """
    if min_duration_s is None:
        min_duration_s = {}
    worker = Worker(stages, n_stages, shape, micro_batches, loss)
    spans = []
    max_in_flight = 0
    for act in acts:
        received = worker.receive(act)
        start_s = time.monotonic()  # the time of waiting for the message is idle time
        result = worker.compute(act, received)
        remaining_s = start_s + min_duration_s.get(act.kind, 0.0) - time.monotonic()
        time.sleep(max(0.0, remaining_s))
        spans.append(Span(act, start_s, time.monotonic()))
        max_in_flight = max(max_in_flight, len(worker.saved))
        target_stage = act.stage - 1
        if act.kind == "F":
            target_stage = act.stage + 1
        if result is not None and target_stage >= 0:
            worker.send(result.contiguous(), act._replace(stage=target_stage))
    for thread in worker.sending:
        thread.join()
    return Run(worker.losses, spans, max_in_flight)


@dataclass
class Worker:
    """One rank in one step. :func:`run` describes the first attributes.

    Attributes:
        losses: The loss of each micro-batch, if this rank has the last stage.
        saved: What the next act of a stage and a micro-batch needs. These are the activations in flight.
        local: Inputs of acts that come from another stage on this rank.
        sending: A thread for each send. It holds the tensor until the send is complete, and then releases it.
    """

    stages: Mapping[int, nn.Module]
    n_stages: int
    shape: Sequence[int]
    micro_batches: Sequence[Tensor]
    loss: Loss
    losses: list[float] = field(default_factory=list)
    saved: dict[tuple[int, int], Any] = field(default_factory=dict)
    local: dict[Act, Tensor] = field(default_factory=dict)
    sending: list[threading.Thread] = field(default_factory=list)

    def tag(self, act: Act) -> int:
        """Return a number that no other message has: the message is the input of this act."""
        number = act.micro_batch * self.n_stages + act.stage
        return 2 * number + (1 if act.kind == "B" else 0)

    def send(self, tensor: Tensor, act: Act) -> None:
        """Start to send the input of ``act`` to the rank that will do this act. Do not wait for the end."""
        receiver = act.stage % dist.get_world_size()
        if receiver == dist.get_rank():
            self.local[act] = tensor
            return
        work = dist.isend(tensor, receiver, tag=self.tag(act))
        thread = threading.Thread(target=hold_until_sent, args=(tensor, work), daemon=True)
        thread.start()
        self.sending.append(thread)

    def receive(self, act: Act) -> Tensor | None:
        """Wait for the input of ``act``. The result is None if the act needs nothing from another stage."""
        if act.kind == "W":
            return None
        source_stage = act.stage + 1
        if act.kind == "F":
            source_stage = act.stage - 1
        if not 0 <= source_stage < self.n_stages:
            return None
        sender = source_stage % dist.get_world_size()
        if sender == dist.get_rank():
            return self.local.pop(act)
        tensor = torch.empty(self.shape)
        dist.recv(tensor, sender, tag=self.tag(act))
        return tensor

    def compute(self, act: Act, received: Tensor | None) -> Tensor | None:
        """Do an act. The result goes to the next stage after F, and to the stage before after B."""
        if act.kind == "F":
            return self.forward(act, received)
        if act.kind == "B":
            return self.backward(act, received)
        add_weight_gradients(self.saved.pop((act.stage, act.micro_batch)))
        return None

    def forward(self, act: Act, received: Tensor | None) -> Tensor | None:
        """Compute the outputs of a stage, or the loss in the last stage. Save the graph for the backward pass."""
        x = self.micro_batches[act.micro_batch]
        if received is not None:
            x = received.requires_grad_()
        y = self.stages[act.stage](x)
        if act.stage < self.n_stages - 1:
            self.saved[act.stage, act.micro_batch] = x, y
            return y.detach()
        loss = self.loss(y, act.micro_batch)
        self.losses.append(loss.item())
        self.saved[act.stage, act.micro_batch] = x, loss
        return None

    def backward(self, act: Act, upstream: Tensor | None) -> Tensor | None:
        """Compute the gradient of the stage's input, and those of its weights if they are not postponed to W."""
        x, y = self.saved.pop((act.stage, act.micro_batch))
        y.backward(upstream)
        postponed: Any = getattr(self.stages[act.stage], "postponed", None)
        if postponed is not None:
            self.saved[act.stage, act.micro_batch] = list(postponed)
            postponed.clear()
        return x.grad


def hold_until_sent(tensor: Tensor, work: dist.Work) -> None:
    """Wait until a send is complete. The tensor must exist until then, and this function has a reference to it.

    Gloo's ``work.is_completed()`` is False until ``wait()`` returns, so nobody could ask instead.
    """
    work.wait()
