"""Post-local SGD: data parallel at first, local SGD after it.

In: a module on each rank, after its backward pass and after its update. Out: equal gradients in the first phase, equal
weights now and then in the second. Early weights change fast, and ranks that go apart then end apart; later a few
updates alone do little harm, and each saves a message. Lin et al. 2018 (arXiv:1808.07217).
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from dltutorial.errors import CourseError
from dltutorial.parallel.local_sgd import LocalSGD, mean_over_ranks


class PostLocalSGD:
    """Call :meth:`after_backward` before each update, :meth:`after_update` after it; both say whether they sent."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        alone_after: int,
        every: int,
        process_group: dist.ProcessGroup | None = None,
        made: int = 0,
    ) -> None:
        """Nothing is sent yet.

        Args:
            parameters: to train, equal on all ranks now (``replica.broadcast`` makes them so).
            alone_after: updates of the first phase, with the mean gradient of all ranks.
            every: updates from one mean of the weights to the next in the second phase.
            process_group: of the ranks that train together; default: all.
            made: updates made before, in a run that goes on.

        Raises:
            CourseError: a count that cannot be.
        """
        for name, count in (("alone_after", alone_after), ("made", made)):
            if count < 0:
                raise CourseError(f"{name}={count}: a number of updates is not negative")
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._local = LocalSGD(self._trained, every, process_group, made=max(0, made - alone_after))
        self._group, self._together = process_group, max(0, alone_after - made)

    def after_backward(self) -> bool:
        """In the first phase, give all ranks the mean gradient; a missing one counts as zero."""
        if not self._together:
            return False
        for parameter in self._trained:
            if parameter.grad is None:  # other ranks may have one, and all must send the same numbers
                parameter.grad = torch.zeros_like(parameter)
        mean_over_ranks([parameter.grad for parameter in self._trained], self._group)
        return True

    def after_update(self) -> bool:
        """In the second phase, give all ranks the mean of their weights if it is time."""
        if self._together:
            self._together -= 1
            return False
        return self._local.after_update()

    def average(self) -> None:
        """Let all ranks take the mean of their weights now, as after the last update."""
        self._local.average()
