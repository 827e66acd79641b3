"""A pipeline by hand: each rank follows its list of acts, and sends the results to the ranks before and behind it.

Inputs are the acts of this rank (from the module ``schedules``), its stages, and the micro-batches. The outputs are the
gradients of the stages' weights, the losses, the time of each act, and the largest number of micro-batches that the
rank held at once.

    rank 0               rank 1               rank 2
    stage 0 ─────y─────► stage 1 ─────y─────► stage 2 ───► loss     F: y is the output of a stage
    stage 0 ◄───d_y───── stage 1 ◄───d_y───── stage 2               B: d_y is the gradient of y

A rank never waits for a send, because two ranks that both wait for their sends would be in a deadlock. Each message has
a tag that names its act, so two messages between the same ranks cannot be confused. Gloo supports tags, and NCCL does
not. Torch's own schedules put all messages into one order instead.

The zero-bubble schedule divides the backward pass of a stage in two. ``postpone_weight_gradients`` changes the linear
layers of a stage. In B they compute the gradient of their input, and in W the gradients of their weights. Until then
they save what W needs.

Sources: as in ``schedules``.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dltutorial.errors import CourseError
from dltutorial.parallel.schedules import Act, Span

Group = dist.ProcessGroup | None  # None stands for all ranks
Loss = Callable[[Tensor, int], Tensor]  # (output of the last stage, number of the micro-batch) → loss
MAX_MICRO_BATCHES = 2**12  # limits the range of the tags


class LinearWithPostponedWeights(torch.autograd.Function):
    """A linear layer whose backward pass computes the gradient of the input, and saves what the weights need."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, postponed: list) -> Tensor:
        """Compute the outputs, as any linear layer does."""
        ctx.save_for_backward(x, weight, bias)
        ctx.postponed = postponed
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple:  # type: ignore[override]
        """Return the gradient of the input. ``upstream`` is the gradient of the output."""
        x, weight, bias = ctx.saved_tensors
        ctx.postponed.append((x, upstream, weight, bias))
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = upstream @ weight
        return x_gradient, None, None, None


def postpone_weight_gradients(stage: Any) -> Any:
    """Change the linear layers of a stage, so that they compute the gradients of their weights in W.

    Args:
        stage: A module.

    Returns:
        The same module. Its attribute ``postponed`` lists what B has saved for W.
    """
    stage.postponed = []
    for layer in stage.modules():
        if type(layer) is nn.Linear:
            # A partial function, because deepcopy gives a copied stage its own layers and its own list. A closure
            # would still refer to those of the original.
            layer.forward = functools.partial(_forward, layer, stage.postponed)  # type: ignore[method-assign]
    return stage


def _forward(layer: nn.Linear, postponed: list, x: Tensor) -> Tensor:
    """Replace the forward method of a linear layer."""
    return LinearWithPostponedWeights.apply(x, layer.weight, layer.bias, postponed)


def _add_weight_gradients(postponed: list) -> None:
    """Add the gradients of the weights to ``.grad``, from what the backward pass has saved."""
    for x, upstream, weight, bias in postponed:
        x_SI = x.flatten(0, -2)  # S samples and tokens, I inputs, O outputs
        upstream_SO = upstream.flatten(0, -2)
        _accumulate(weight, upstream_SO.T @ x_SI)
        _accumulate(bias, upstream_SO.sum(0))


def _accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to ``parameter.grad``."""
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad = parameter.grad + gradient


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


class Worker:
    """One rank in one step. :func:`run` describes the arguments."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        n_stages: int,
        shape: Sequence[int],
        micro_batches: Sequence[Tensor],
        loss: Loss,
        has_w: bool,
        group: Group,
    ) -> None:
        self.stages = stages
        self.n_stages = n_stages
        self.shape = shape
        self.micro_batches = micro_batches
        self.loss = loss
        self.has_w = has_w  # whether the acts of this rank include W
        self.group = group
        self.rank = dist.get_rank(group)
        self.global_ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.losses: list[float] = []
        self.local: dict[Act, Tensor] = {}  # inputs of acts that come from another stage on this rank
        self.sends: list[tuple[Any, Tensor]] = []  # with their tensors, which must exist until the send has ended
        self.saved: dict[tuple[int, int], Any] = {}  # (stage, micro-batch) → what its next act needs

    def rank_of(self, stage: int) -> int:
        """Return the rank that holds a stage."""
        return stage % len(self.global_ranks)

    def tag(self, act: Act) -> int:
        """Return a number that no other message has: the message is the input of this act."""
        number = act.stage * MAX_MICRO_BATCHES + act.micro_batch
        return 2 * number + (1 if act.kind == "B" else 0)

    def send(self, tensor: Tensor, act: Act) -> None:
        """Start to send the input of ``act`` to the rank that will do this act. Do not wait for the end."""
        receiver = self.rank_of(act.stage)
        if receiver == self.rank:
            self.local[act] = tensor
        else:
            work = dist.isend(tensor, self.global_ranks[receiver], self.group, self.tag(act))
            self.sends.append((work, tensor))

    def receive(self, act: Act) -> Tensor | None:
        """Wait for the input of ``act``. The result is None if the act needs nothing from another stage."""
        if act.kind == "W":
            return None
        source_stage = act.stage - 1 if act.kind == "F" else act.stage + 1
        if not 0 <= source_stage < self.n_stages:
            return None
        sender = self.rank_of(source_stage)
        if sender == self.rank:
            return self.local.pop(act)
        tensor = torch.empty(self.shape)
        dist.recv(tensor, self.global_ranks[sender], self.group, self.tag(act))
        return tensor

    def compute(self, act: Act, received: Tensor | None) -> Tensor | None:
        """Do an act. The result goes to the next stage after F, and to the stage before after B."""
        if act.kind == "F":
            return self.forward(act, received)
        if act.kind == "B":
            return self.backward(act, received)
        _add_weight_gradients(self.saved.pop((act.stage, act.micro_batch)))
        return None

    def forward(self, act: Act, received: Tensor | None) -> Tensor | None:
        """Compute the outputs of a stage, or the loss in the last stage. Save the graph for the backward pass."""
        x = self.micro_batches[act.micro_batch]
        if received is not None:
            x = received.requires_grad_()
        y = self.stages[act.stage](x)
        is_last = act.stage == self.n_stages - 1
        if is_last:
            y = self.loss(y, act.micro_batch)
            self.losses.append(y.item())
        self.saved[act.stage, act.micro_batch] = x, y
        return None if is_last else y.detach()

    def backward(self, act: Act, upstream: Tensor | None) -> Tensor | None:
        """Compute the gradient of the stage's input, and those of its weights if they do not wait for W."""
        stage = self.stages[act.stage]
        x, y = self.saved.pop((act.stage, act.micro_batch))
        y.backward(upstream)
        postponed = getattr(stage, "postponed", [])
        if self.has_w:
            self.saved[act.stage, act.micro_batch] = list(postponed)
        else:
            _add_weight_gradients(postponed)
        postponed.clear()
        return x.grad


def run(
    acts: Sequence[Act],
    stages: Mapping[int, nn.Module],
    n_stages: int,
    shape: Sequence[int],
    micro_batches: Sequence[Tensor],
    loss: Loss,
    at_least_s: Mapping[str, float] | None = None,
    group: Group = None,
) -> Run:
    """Run one step on this rank. All ranks call this function, each with its own acts.

    Args:
        acts: The acts of this rank, in order.
        stages: The stages of this rank, by number. Stage s is on rank s mod p.
        n_stages: The number of stages on all ranks together.
        shape: The shape of the float32 tensor that goes from one stage to the next.
        micro_batches: The inputs of stage 0.
        loss: A function of the last stage's output and the number of the micro-batch.
        at_least_s: The least duration of an act, for each kind. The rank sleeps for the rest of it. This imitates a
            device that is busy while its host waits.
        group: The ranks of this pipeline. The default is all ranks.

    Returns:
        The losses, the times of the acts, and the largest number of activations.

    Raises:
        CourseError: The acts include W, but the stages do not postpone the gradients of their weights.
    """
    has_w = any(act.kind == "W" for act in acts)
    if has_w and not all(hasattr(stage, "postponed") for stage in stages.values()):
        raise CourseError("a schedule with W needs other stages; make them with postpone_weight_gradients(stage)")
    least_s = at_least_s or {}
    worker = Worker(stages, n_stages, shape, micro_batches, loss, has_w, group)
    spans = []
    max_in_flight = 0
    for act in acts:
        received = worker.receive(act)
        start_s = time.monotonic()  # the time of waiting for the message is idle time
        result = worker.compute(act, received)
        remaining_s = start_s + least_s.get(act.kind, 0.0) - time.monotonic()
        time.sleep(max(0.0, remaining_s))
        spans.append(Span(act, start_s, time.monotonic()))
        max_in_flight = max(max_in_flight, len(worker.saved))
        target_stage = act.stage + 1 if act.kind == "F" else act.stage - 1
        if result is not None and target_stage >= 0:
            worker.send(result.contiguous(), act._replace(stage=target_stage))
    for work, _ in worker.sends:
        work.wait()
    return Run(worker.losses, spans, max_in_flight)
