"""A model cut into stages, one for each rank of a pipeline; torch's 1F1B moves the parts of a batch through them.

In: a model whose work is ``tokens``, ``through`` its blocks, ``field`` (models.vit), and the ranks of a pipeline.
Out: a step that makes the update of one process, up to rounding, and forecasts that all these ranks have.

The blocks are dealt out as equally as can be, the first ones to the first rank, which has the embedding, too; the last
rank has the head and the loss. Narayanan et al. 2021 (arXiv:2104.04473); chapter 19 writes the schedule by hand.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.engine.precision import Precision
from dltutorial.engine.recipe import LoopRecipe
from dltutorial.errors import CourseError
from dltutorial.parallel.ddp import BucketedDDP
from dltutorial.profile.ranges import annotate

PARTS_OF_ENDS = ("embed", "position_1TD"), ("norm", "head")  # of the first and of the last stage


class Stage(nn.Module):
    """What one rank of a pipeline has of a model; all else is taken out of the model, in place.

    Attributes:
        first, last: whether it is this stage.
        device: where it lies.
    """

    def __init__(self, model: Any, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.device = next(model.parameters()).device
        self.model, self.group, self.ranks = model, group, dist.get_process_group_ranks(group)
        self.number, last = dist.get_rank(group), len(self.ranks) - 1
        self.first, self.last = self.number == 0, self.number == last
        mine = torch.arange(len(model.blocks)).tensor_split(len(self.ranks))[self.number].tolist()
        for n in set(range(len(model.blocks))) - set(mine):
            model.blocks[n] = nn.Identity()
        for names, is_mine in zip(PARTS_OF_ENDS, (self.first, self.last), strict=True):
            for name in () if is_mine else names:
                setattr(model, name, None)
        self.loss: Callable[..., Tensor] | None = None
        self.precision = Precision("fp32", self.device.type)
        model.forward = self.forecast  # what a task's metrics call

    @property
    def blocks(self) -> list[nn.Module]:
        """Of this stage."""
        return [block for block in self.model.blocks if not isinstance(block, nn.Identity)]

    def forward(self, x: Tensor, **batch: Tensor) -> Tensor:
        """Tokens for the next stage; of the last one the loss of a batch, shape (1,), or, without a loss, the field."""
        with self.precision.autocast():
            x_BTD = self.model.through(self.model.tokens(x) if self.first else x).contiguous()  # as messages must be
            if not self.last:
                return x_BTD
            if self.loss is None:
                return self.model.field(x_BTD, batch["x0"])
            return torch.stack([self.loss(lambda now: self.model.field(x_BTD, now), *batch.values())])

    def forecast(self, x_BCHW: Tensor) -> Tensor:
        """What the whole model gives, on all ranks of the pipeline, which call it together."""
        loss, self.loss, at = self.loss, None, x_BCHW
        for number, rank in enumerate(self.ranks):
            if number == self.number:
                at = self(at, x0=x_BCHW).contiguous()
            size = [(at.shape, at.dtype)]
            dist.broadcast_object_list(size, rank, self.group)
            if number != self.number:
                at = torch.empty(size[0][0], dtype=size[0][1], device=self.device)
            dist.broadcast(at, rank, self.group)
        self.loss = loss
        return at


def make_pipelined_step(
    model: nn.Module, stage: Stage, loss: Callable[..., Tensor], optimizer: torch.optim.Optimizer,
    recipe: LoopRecipe, precision: Precision,
) -> Callable[..., Tensor]:  # fmt: skip
    """``step(*batch)``: an update by ``recipe.accumulate`` equal parts of the batch, which pass through all stages.

    It returns this rank's share of the loss, so that the mean over all ranks is the loss: only the last stage has it.

    Args:
        model: the stage, wrapped as it may be.
        stage: of this rank.
        loss: ``loss(model, *batch)``, whose model takes ``batch[0]``.
        optimizer: holds the stage's parameters.
        recipe: ``accumulate`` is at least the number of stages, and divides the batch.
        precision: of the arithmetic.

    Raises:
        CourseError: this torch's pipelines can hang here.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules  # it takes a while

    if dist.get_backend(stage.group) == "gloo" and not hasattr(schedules, "_wait_batch_p2p"):  # pytorch#152938
        raise CourseError("pipelines of this torch can hang on gloo; install a newer one, or take pipeline=1")
    precision.spare(stage)
    stage.loss, stage.precision, n = loss, precision, len(stage.ranks)
    plan = PipelineStage(model, stage.number, n, stage.device, group=stage.group)
    copies = model if isinstance(model, BucketedDDP) else None
    schedule = Schedule1F1B(plan, recipe.accumulate, loss_fn=lambda losses, _: losses.sum())

    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        named: dict[str, Any] = {f"x{n}": tensor for n, tensor in enumerate(batch)} if stage.last else {}
        losses: list[Tensor] = []
        with precision.products():
            with annotate("forward and backward"):
                target = batch[0] if stage.last else None  # torch asks for one; the loss has the batch
                with copies.no_sync() if copies else nullcontext():  # of the parts; FSDP knows by itself
                    schedule.step(*batch[: stage.first], target=target, losses=losses, **named)
                if copies:
                    copies.sync_gradients()
            with annotate("optimizer"):
                precision.update(optimizer, recipe.clip_norm)
        return n * torch.stack(losses).mean().detach() if stage.last else torch.zeros((), device=stage.device)

    return step
