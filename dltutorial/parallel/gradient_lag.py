"""Gradient lag: each step uses the mean gradients of the step before, so an all-reduce may last a whole step.

The input is a model on each rank, whose ``backward()`` has just finished. The output is, in ``.grad``, the mean over
all ranks of the gradients of the step before. In the first step these are zeros.

    step          1                    2                    3
    computation   [ gradients 1 ]      [ gradients 2 ]      [ gradients 3 ]
    all-reduce                   [ gradients 1      ][ gradients 2       ]
    update                       zeros               mean of 1            mean of 2

Legend: P values of all trainable parameters, which one flat tensor holds.

Source: Kurth et al. 2018 (arXiv:1810.01993).
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.profiler import record_function


class LateGradients:
    """Averages gradients over the ranks in place of DDP, one step late."""

    def __init__(self, model: nn.Module) -> None:
        """Give all ranks rank 0's weights. All ranks call this together.

        Args:
            model: The model, on its device. In each step, every trainable parameter must get a gradient.
        """
        broadcast_tensors([*model.parameters(), *model.buffers()])
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.mean_P = torch.zeros_like(parameters_to_vector(self.parameters))
        self.all_reduce: dist.Work | None = None

    def exchange(self) -> None:
        """Put the mean gradients of the step before into ``.grad``, and start the all-reduce of the new gradients.

        Call this between ``loss.backward()`` and ``optimizer.step()``.
        """
        new_P = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        if self.all_reduce is not None:
            with record_function("wait for the gradients of the step before"):
                self.all_reduce.wait()
        self.set_gradients(self.mean_P)
        self.mean_P = new_P / dist.get_world_size()  # it is the mean when the all-reduce has ended
        self.all_reduce = dist.all_reduce(self.mean_P, async_op=True)

    def set_gradients(self, gradient_P: torch.Tensor) -> None:
        """Let the ``.grad`` of each parameter be its place in the flat tensor."""
        sizes = [p.numel() for p in self.parameters]
        for p, gradient in zip(self.parameters, gradient_P.split(sizes), strict=True):
            p.grad = gradient.view_as(p)


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Overwrite the tensors of all ranks with those of rank 0. The tensors may have any memory layout."""
    with torch.no_grad():
        for tensor in tensors:
            contiguous = tensor.contiguous()
            dist.broadcast(contiguous, 0)
            if contiguous.data_ptr() != tensor.data_ptr():
                tensor.copy_(contiguous)
