"""Gradient lag: each step uses the mean gradients of the step before, while its own gradients travel.

In: a model on each rank, whose ``backward()`` has just finished. Out: in ``.grad``, the mean over all ranks of the
gradients of the step before. In the first step these are zeros. Therefore an all-reduce has a whole step to arrive.
Kurth et al. 2018 (arXiv:1810.01993).

Legend: P parameters that are trained.
"""

import torch
import torch.distributed as dist
from torch import nn

from dltutorial.parallel.ddp import broadcast_tensors
from dltutorial.profile.ranges import annotate


class LateGradients:
    """Averages gradients over the ranks in place of DDP, one step late."""

    def __init__(self, model: nn.Module) -> None:
        """Give all ranks rank 0's weights. All ranks call this together.

        Args:
            model: on its device. In each step, every parameter that is trained must get a gradient.
        """
        broadcast_tensors([*model.parameters(), *model.buffers()])
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.travelling_P = torch.cat([torch.zeros_like(p).flatten() for p in self.parameters])
        self.work: dist.Work | None = None

    def exchange(self) -> None:
        """Call this between ``loss.backward()`` and ``optimizer.step()``."""
        own_P = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        if self.work is not None:
            with annotate("wait for the gradients of the step before"):
                self.work.wait()
        late_gradients = self.travelling_P.split([p.numel() for p in self.parameters])
        for p, gradient in zip(self.parameters, late_gradients, strict=True):
            p.grad = gradient.view_as(p)
        self.travelling_P = own_P / dist.get_world_size()
        self.work = dist.all_reduce(self.travelling_P, async_op=True)
