"""Local SGD: every rank trains by itself for a few updates, then all take the mean of their weights.

In: a module on each rank, after its update. Out: now and then, equal weights on all ranks. One message for all
weights every ``every`` updates instead of one for all gradients in each. With plain SGD and ``every=1`` it *is* data
parallelism: the mean of the moved weights is the old weights moved by the mean gradient. Stich 2018
(arXiv:1805.09767); for Adam the moments stay each rank's own.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from dltutorial.errors import CourseError


class LocalSGD:
    """Call :meth:`after_update` once after each update."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        every: int,
        process_group: dist.ProcessGroup | None = None,
        made: int = 0,
    ) -> None:
        """Nothing is sent yet.

        Args:
            parameters: to average, equal on all ranks now (``replica.broadcast`` makes them so).
            every: updates from one averaging to the next.
            process_group: of the ranks that train together; default: all.
            made: updates made before, in a run that goes on.

        Raises:
            CourseError: ``every`` is less than 1.
        """
        if every < 1:
            raise CourseError(f"every={every}: weights are averaged every 1 or more updates")
        self._parameters, self.every, self._group, self._n_updates = list(parameters), every, process_group, made

    def after_update(self) -> bool:
        """Average if it is time; returns whether it was."""
        self._n_updates += 1
        if self._n_updates % self.every:
            return False
        self.average()
        return True

    def average(self) -> None:
        """Let all ranks take the mean of their weights now, as after the last update."""
        mean_over_ranks(self._parameters, self._group)


@torch.no_grad()
def mean_over_ranks(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Put the mean over all ranks in place of each tensor: one message for each device and kind of number."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat_N = torch.cat([tensor.flatten() for tensor in alike]).div_(dist.get_world_size(group))
        dist.all_reduce(flat_N, group=group)
        for tensor, part in zip(alike, flat_N.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(part.view_as(tensor))
