"""Gradient lag: each update takes the last step's mean gradient, while this step's travels.

In: gradients of each rank's own samples. Out: in their place the mean over ranks of the step before; at the first step
zeros. So an all-reduce has a whole step to arrive. Kurth et al. 2018 (arXiv:1810.01993). Checkpoints hold it.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.engine.distributed import world_size
from dltutorial.parallel.ddp import broadcast_tensors
from dltutorial.profile.ranges import annotate


class LateGradients:
    """What averages gradients in place of DDP; made on all ranks together, it gives them rank 0's weights."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._under_way = torch.cat([torch.zeros_like(p).flatten() for p in self._parameters])
        self._work: dist.Work | None = None
        if world_size() > 1:
            broadcast_tensors([*model.parameters(), *model.buffers()])
        optimizer.register_state_dict_post_hook(self._put)
        optimizer.register_load_state_dict_post_hook(self._take)

    def swap(self) -> None:
        """Put the last step's mean gradients in place of this step's, and send these off."""
        mine = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self._parameters])
        for p, late in self._late():
            p.grad = late
        self._under_way = mine.div_(world_size())
        if world_size() > 1:
            self._work = dist.all_reduce(mine, async_op=True)

    def _late(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Parameters, and the last step's mean gradients, once they are here."""
        if self._work is not None:
            with annotate("wait for the last gradients"):
                self._work.wait()
            self._work = None
        parts = self._under_way.split([p.numel() for p in self._parameters])
        return [(p, part.view_as(p)) for p, part in zip(self._parameters, parts, strict=True)]

    def _put(self, optimizer: torch.optim.Optimizer, made: dict) -> None:
        """Into a ``state_dict``, and there only: an optimizer may count what it remembers."""
        numbers = {p: n for n, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
        for p, late in self._late():
            made["state"][numbers[p]] = made["state"].get(numbers[p], {}) | {"late": late}

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        """From a ``state_dict`` that was loaded."""
        self._under_way = torch.cat([optimizer.state[p].pop("late").flatten() for p in self._parameters])
