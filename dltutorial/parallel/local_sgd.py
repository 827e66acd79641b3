"""Local SGD: every rank trains by itself for a few updates, then all take the mean of their weights.

In: a module on each rank, after its update. Out: now and then, equal weights on all ranks. One message for all
weights every ``every`` updates instead of one for all gradients in each. With plain SGD and ``every=1`` it *is* data
parallelism: the mean of the moved weights is the old weights moved by the mean gradient. Stich 2018
(arXiv:1805.09767); for Adam the moments stay each rank's own.

*Post-local SGD* begins with data parallelism. Early weights change fast, and ranks that go apart then end apart; later
a few updates alone do little harm, and each saves a message. Lin et al. 2018 (arXiv:1808.07217).
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from dltutorial.errors import CourseError


class LocalSGD:
    """Call :meth:`after_update` after each update, and if ranks begin together :meth:`after_backward` before it.

    Both say whether they sent something.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        every: int,
        together: int = 0,
        process_group: dist.ProcessGroup | None = None,
        made: int = 0,
    ) -> None:
        """Nothing is sent yet.

        Args:
            parameters: to train, equal on all ranks now.
            every: updates from one mean of the weights to the next.
            together: updates before that with the mean gradient of all ranks.
            process_group: of the ranks that train together; default: all.
            made: updates made before, in a run that goes on.

        Raises:
            CourseError: a count that cannot be.
        """
        if every < 1:
            raise CourseError(f"every={every}: weights are averaged every 1 or more updates")
        for name, count in (("together", together), ("made", made)):
            if count < 0:
                raise CourseError(f"{name}={count}: a number of updates is not negative")
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.every, self.together, self._group, self._made = every, together, process_group, made

    def after_backward(self) -> bool:
        """In the first phase, give all ranks the mean gradient; a missing one counts as zero."""
        if self._made >= self.together:
            return False
        for parameter in self._trained:
            if parameter.grad is None:  # other ranks may have one, and all must send the same numbers
                parameter.grad = torch.zeros_like(parameter)
        average_over_ranks([p.grad for p in self._trained if p.grad is not None], self._group)
        return True

    def after_update(self) -> bool:
        """In the second phase, give all ranks the mean of their weights if it is time."""
        self._made += 1
        alone = self._made - self.together
        if alone <= 0 or alone % self.every:
            return False
        self.average()
        return True

    def average(self) -> None:
        """Let all ranks take the mean of their weights now, as after the last update."""
        average_over_ranks(self._trained, self._group)


@torch.no_grad()
def average_over_ranks(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Put the mean over all ranks in place of each tensor: one message for each device and kind of number."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat_N = torch.cat([tensor.flatten() for tensor in alike]).div_(dist.get_world_size(group))
        dist.all_reduce(flat_N, group=group)
        for tensor, part in zip(alike, flat_N.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(part.view_as(tensor))
