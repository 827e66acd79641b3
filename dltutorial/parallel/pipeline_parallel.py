"""A pipeline by hand: each rank follows its list of actions, and sends the results to the ranks before and behind it.

Read the module ``pipeline_schedules`` first. It explains actions and schedules, which this module runs on real ranks.

A model is divided into *stages*, which are groups of consecutive layers. Each rank has one stage or several. A batch is
divided into micro-batches, so that the ranks can work at the same time, each on another micro-batch.

Inputs are the actions of this rank, its stages, and the micro-batches. The outputs are the gradients of the stages'
weights, the losses, the time of each action, and the largest number of micro-batches that the rank held at once.

    rank 0                  rank 1                  rank 2
    stage 0 ──────y───────► stage 1 ──────y───────► stage 2 ───► loss     F: y is the output of a stage
    stage 0 ◄───grad_y───── stage 1 ◄───grad_y───── stage 2               B: grad_y is the gradient of y

For each action a rank receives the input, computes, and starts to send the result. It waits for its sends only at the
end of the step. Two ranks that both wait for a send earlier would be in a deadlock, because neither would receive.
The tensor of a send must exist until the send is complete. Therefore the tensors of all sends live until the end of the
step. Each message has a tag that names its action, so two messages between the same ranks cannot be confused. Gloo
supports tags, and NCCL does not. Torch's own schedules put all messages into one order instead.

The zero-bubble schedule divides the backward pass of a stage in two: B computes the gradient of the stage's input, and
W the gradients of its weights. The module ``postponed_gradients`` prepares stages for this, and computes W.

Legend: x is the input of a stage, and y is its output.

Sources: as in ``pipeline_schedules``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.parallel.pipeline_schedules import Action, Span
from dltutorial.parallel.postponed_gradients import add_weight_gradients

LossFunction = Callable[[Tensor, int], Tensor]  # (output of the last stage, number of the micro-batch) → loss


class StepResult(NamedTuple):
    """What one rank did in one step.

    Attributes:
        losses: The loss of each micro-batch, on the rank with the last stage. They are in the order in which the last
            stage does its forward passes. The list is empty on the other ranks.
        spans: The times of the actions, in seconds of the monotonic clock. Waiting for messages is not included.
        max_in_flight: The largest number of activations that the rank held at once. The tensors of sends do not count.
    """

    losses: list[float]
    spans: list[Span]
    max_in_flight: int


def run_schedule(
    actions: Sequence[Action],
    stages: Mapping[int, nn.Module],
    n_stages: int,
    shape: Sequence[int],
    micro_batches: Sequence[Tensor],
    loss_fn: LossFunction,
    min_duration_s: Mapping[str, float] | None = None,
) -> StepResult:
    """Run one step on this rank. All ranks call this function, each with its own actions.

    All tensors are on the CPU, and the process group uses gloo.

    Args:
        actions: The actions of this rank, in order.
        stages: The stages of this rank, by number. Stage s is on rank s mod p. If the actions include W, and only then,
            ``postpone_weight_gradients`` has changed the stages.
        n_stages: The number of stages on all ranks together.
        shape: The shape of the float32 tensor that goes from one stage to the next, the same for x, y and their
            gradients.
        micro_batches: The inputs of stage 0, of any shape. Only the rank with stage 0 reads them.
        loss_fn: A function of the last stage's output and the number of the micro-batch. The pipeline adds the
            gradients of all micro-batches, and does not average them. Therefore this function must divide the mean loss
            of a micro-batch by the number of micro-batches. Then the sum is the gradient of the mean over the batch.
        min_duration_s: Sleep up to this time, to emulate a slower device. One time for each kind of action.

    Returns:
        The losses, the times of the actions, and the largest number of activations. The losses are in the order in
        which the last stage does its forward passes.
    """
    if min_duration_s is None:
        min_duration_s = {}
    runner = StageRunner(stages, n_stages, shape, micro_batches, loss_fn)
    spans = []
    max_in_flight = 0
    for action in actions:
        received = runner.receive(action)
        start_s = time.monotonic()  # the time of waiting for the message is idle time
        result = runner.compute(action, received)
        remaining_s = start_s + min_duration_s.get(action.kind, 0.0) - time.monotonic()
        time.sleep(max(0.0, remaining_s))
        spans.append(Span(action, start_s, time.monotonic()))
        max_in_flight = max(max_in_flight, len(runner.saved_activations))
        dependent = runner.action_that_needs_result(action)
        if dependent is not None and result is not None:
            runner.send(result.contiguous(), dependent)
    for work, _ in runner.sends:
        work.wait()
    return StepResult(runner.losses, spans, max_in_flight)


@dataclass
class StageRunner:
    """Runs the stages of one rank in one step. :func:`run_schedule` describes the first attributes.

    Attributes:
        losses: The loss of each micro-batch, if this rank has the last stage.
        saved_activations: What a later action of the same stage and micro-batch needs. The entries are the activations
            in flight. The key is (stage, micro-batch), and the value depends on the action that saved it:

                after F                      (x, y)
                after F in the last stage    (x, loss)
                after B, if W follows        the postponed gradients: the list from which W computes them
        local: Inputs of actions that come from another stage on this rank.
        sends: For each send, its ``Work``, which can wait until the send is complete, and the tensor, which must exist
            until then.
    """

    stages: Mapping[int, nn.Module]
    n_stages: int
    shape: Sequence[int]
    micro_batches: Sequence[Tensor]
    loss_fn: LossFunction
    losses: list[float] = field(default_factory=list)
    saved_activations: dict[tuple[int, int], Any] = field(default_factory=dict)
    local: dict[Action, Tensor] = field(default_factory=dict)
    sends: list[tuple[dist.Work, Tensor]] = field(default_factory=list)

    def tag(self, action: Action) -> int:
        """Return a number that no other message has: the message is the input of this action."""
        number = action.micro_batch * self.n_stages + action.stage
        return 2 * number + (1 if action.kind == "B" else 0)

    def action_that_needs_result(self, action: Action) -> Action | None:
        """Return the action of another stage that needs the result of this one, or None if there is none."""
        other_stage = action.stage - 1
        if action.kind == "F":
            other_stage = action.stage + 1
        if action.kind == "W" or not 0 <= other_stage < self.n_stages:
            return None
        return action._replace(stage=other_stage)

    def send(self, tensor: Tensor, action: Action) -> None:
        """Start to send the input of ``action`` to the rank that will do this action. Do not wait for the end."""
        receiver = action.stage % dist.get_world_size()
        if receiver == dist.get_rank():
            self.local[action] = tensor
            return
        work: Any = dist.isend(tensor, receiver, tag=self.tag(action))
        self.sends.append((work, tensor))

    def receive(self, action: Action) -> Tensor | None:
        """Wait for the input of ``action``. The result is None if the action needs nothing from another stage."""
        if action.kind == "W":
            return None
        source_stage = action.stage + 1
        if action.kind == "F":
            source_stage = action.stage - 1
        if not 0 <= source_stage < self.n_stages:
            return None
        sender = source_stage % dist.get_world_size()
        if sender == dist.get_rank():
            return self.local.pop(action)
        tensor = torch.empty(self.shape)
        dist.recv(tensor, sender, tag=self.tag(action))
        return tensor

    def compute(self, action: Action, received: Tensor | None) -> Tensor | None:
        """Do an action. The result goes to the next stage after F, and to the stage before after B."""
        if action.kind == "F":
            return self.forward(action, received)
        if action.kind == "B":
            return self.backward(action, received)
        add_weight_gradients(self.saved_activations.pop((action.stage, action.micro_batch)))
        return None

    def forward(self, action: Action, received: Tensor | None) -> Tensor | None:
        """Compute the outputs of a stage, or the loss in the last stage. Save the graph for the backward pass."""
        x = self.micro_batches[action.micro_batch] if received is None else received.requires_grad_()
        y = self.stages[action.stage](x)
        if action.stage < self.n_stages - 1:
            self.saved_activations[action.stage, action.micro_batch] = x, y
            return y.detach()
        loss = self.loss_fn(y, action.micro_batch)
        self.losses.append(loss.item())
        self.saved_activations[action.stage, action.micro_batch] = x, loss
        return None

    def backward(self, action: Action, grad_y: Tensor | None) -> Tensor | None:
        """Compute the gradient of the stage's input, and those of its weights if they are not postponed to W."""
        x, y = self.saved_activations.pop((action.stage, action.micro_batch))
        y.backward(grad_y)
        postponed: Any = getattr(self.stages[action.stage], "postponed", None)
        if postponed is not None:
            self.saved_activations[action.stage, action.micro_batch] = list(postponed)
            postponed.clear()
        return x.grad
