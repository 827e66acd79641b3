"""The noise scale from the ranks' own gradients, which data parallelism has at hand anyway.

In: a data-parallel model. Out: |G|², tr(Σ) and B_simple along its training. Each rank's gradient is that of a small
batch, the averaged one that of the large batch, so there is no gradient to compute beyond those of the training. A
hook takes the length of each bucket before it is averaged; the lengths then travel in one message of one number.

    model = OverlappedDDP(net)                    # or BucketedDDP, or torch's DistributedDataParallel
    noise = RankNoise(model, batch_size=32)       # of one rank
    ...
    loss.backward(); noise.after_backward(); optimizer.step()
    noise.running.scale                           # B_simple in samples

The loss must be the mean over the rank's batch. Any constant factor on it, a loss scale too, leaves the ratio as it is.
With micro-batches in ``no_sync()``, call it after the last one; ``batch_size`` then counts the samples of all of them.
Source: McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.convergence.noise import Running, squared_length, two_batches
from dltutorial.errors import CourseError
from dltutorial.parallel import comm_hooks
from dltutorial.parallel.comm_hooks import Hook


class RankNoise:
    """Listens to a data-parallel model's buckets. Make it before the first backward pass."""

    def __init__(
        self,
        model: nn.Module,
        batch_size: int,
        decay: float = 0.95,
        hook: Hook = comm_hooks.mean,
        state: Any = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Hang itself before the hook that averages.

        Args:
            model: with ``register_comm_hook``: torch's ``DistributedDataParallel``, ``BucketedDDP``, ``OverlappedDDP``.
            batch_size: samples of one rank, the same on all.
            decay: of the running means.
            hook, state: what averages a bucket, and its state (default: the process group); one that rounds or
                compresses adds its error to the noise.
            process_group: of the ranks that train together; default: all.

        Raises:
            CourseError: one rank alone, ranks with batches of different sizes, or a model without such hooks.
        """
        register: Any = getattr(model, "register_comm_hook", None)
        if register is None:
            wrappers = "OverlappedDDP, BucketedDDP or torch's DistributedDataParallel"
            raise CourseError(f"{type(model).__name__} takes no communication hook; wrap the model in {wrappers}")
        self.world_size = dist.get_world_size(process_group)
        if self.world_size < 2:
            raise CourseError("one rank has one batch size, the noise scale needs two; run on two ranks or more")
        self.batch_size, self._group, self._hook = batch_size, process_group, hook
        sizes: list[Any] = [None] * self.world_size
        dist.all_gather_object(sizes, batch_size, group=process_group)
        if len(set(sizes)) > 1:
            raise CourseError(f"the ranks' batches hold {sizes} samples; the estimate needs equal ones")
        self._hook_state = process_group if state is None else state
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._own: Tensor | None = None
        self.running = Running(decay)
        register(self, _listen)

    def after_backward(self) -> tuple[Tensor, Tensor]:
        """This step's |G|² and tr(Σ), the same on all ranks, on the device; also taken into ``running``.

        Call it on every rank, before gradients are clipped or cleared.

        Raises:
            CourseError: no backward pass that averages came before.
        """
        if self._own is None:
            raise CourseError("no gradients were averaged since the last call; call after_backward() after backward()")
        small, self._own = self._own / self.world_size, None
        dist.all_reduce(small, group=self._group)
        large = squared_length(p.grad for p in self._parameters if p.grad is not None)
        estimates = two_batches(small, large, self.batch_size, self.batch_size * self.world_size)
        self.running.update(*estimates)
        return estimates


def _listen(noise: RankNoise, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    own = squared_length([bucket.buffer()])  # before the hook below overwrites it
    noise._own = own if noise._own is None else noise._own + own
    return noise._hook(noise._hook_state, bucket)
