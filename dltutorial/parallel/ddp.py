"""Data-parallel training three times over, each beside torch's ``DistributedDataParallel`` and with its interface.

In: a module on every rank. Out: the same module, whose gradients are the mean over all ranks when ``backward()``
returns. With equal batches on all ranks that is the gradient of the whole global batch, so that training equals that
of a single process up to rounding.

- :class:`NaiveDDP` averages one gradient after another when the backward pass is over;
- :class:`BucketedDDP` sends many gradients in one message;
- :class:`OverlappedDDP` sends a bucket as soon as it is full, while the backward pass goes on.

``replica`` holds what they share. Source: Li et al. 2020 (arXiv:2006.15704).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial.parallel.buckets import Bucket, make_buckets
from dltutorial.parallel.gradient_hooks import Hook
from dltutorial.parallel.packing import DEFAULT_BYTES, FIRST_BYTES
from dltutorial.parallel.replica import Replica


class NaiveDDP(Replica):
    """All-reduce every gradient, one by one, after the backward pass."""

    def _average(self) -> None:
        self._check_all_used()
        used = self._used_anywhere()
        for parameter in self._named.values():
            if used[parameter]:
                parameter.grad = self._mean(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)

    def _average_zeros(self) -> None:
        used = self._union([False] * len(self._named)) if self._finds_unused else {}
        for parameter in self._named.values():
            if used.get(parameter, True):
                self._mean(torch.zeros_like(parameter))

    def _mean(self, gradient: Tensor) -> Tensor:
        message = gradient.detach().contiguous().div_(self.world_size)
        dist.all_reduce(message, group=self.process_group)
        return message


class BucketedDDP(Replica):
    """Copy gradients into a few large buckets after the backward pass, and all-reduce those, one by one."""

    def __init__(
        self,
        module: nn.Module,
        *,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
        **options: Any,
    ) -> None:
        """Make the buckets.

        Args:
            module: the model, already on its device.
            bucket_cap_mb: MiB with which a bucket is full; default, as torch's: 25, and 1 for the first bucket.
            gradient_as_bucket_view: let gradients live in the buckets: one copy and the memory of all gradients less.
            **options: of ``Replica``.

        Raises:
            CourseError: as ``Replica``.
        """
        super().__init__(module, **options)
        sizes = (DEFAULT_BYTES, FIRST_BYTES) if bucket_cap_mb is None else (int(bucket_cap_mb * 2**20),)
        self.buckets = make_buckets(self._named.values(), *sizes)
        self._as_view = gradient_as_bucket_view
        self._hook: Hook = _sum
        self._hook_state: Any = self.process_group
        self._factor = 1 / self.world_size  # divided first: a sum of many ranks could leave the range of 16 bits

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Let ``hook(state, bucket)`` average the buckets: torch's hooks work, such as ``fp16_compress_hook``."""
        self._hook_state, self._hook, self._factor = state, hook, 1.0  # it divides for itself

    def _average(self) -> None:
        self._check_all_used()
        for bucket in self.buckets:
            for place in range(len(bucket.parameters())):
                bucket.put(place, self._factor)
            self._await(bucket, self._start(bucket))
        self._take_out()

    def _average_zeros(self) -> None:
        for bucket in self.buckets:
            bucket.buffer().zero_()
            self._start(bucket).wait()
        if self._finds_unused:
            self._union([False] * len(self._named))

    def _start(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        return self._hook(self._hook_state, bucket)

    def _await(self, bucket: Bucket, future: torch.futures.Future[Tensor]) -> None:
        averaged_N = future.wait()
        averaged_N = averaged_N[0] if isinstance(averaged_N, (list, tuple)) else averaged_N  # an all-reduce's own
        if averaged_N.data_ptr() != bucket.buffer().data_ptr():
            bucket.set_buffer(averaged_N)

    def _take_out(self) -> None:
        used = self._used_anywhere()
        for bucket in self.buckets:
            bucket.take_out([used[parameter] for parameter in bucket.parameters()], self._as_view)


class OverlappedDDP(BucketedDDP):
    """Start a bucket's all-reduce when its last gradient arrives, while autograd works on the layers before."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        """As ``BucketedDDP``."""
        super().__init__(module, **options)
        self._place = {p: (bucket, n) for bucket in self.buckets for n, p in enumerate(bucket.parameters())}
        self._begin()

    def _begin(self) -> None:
        self._missing = [set(range(len(bucket.parameters()))) for bucket in self.buckets]
        self._started: list[torch.futures.Future[Tensor]] = []

    def _ready(self, parameter: nn.Parameter) -> None:
        bucket, place = self._place[parameter]
        bucket.put(place, self._factor)
        self._missing[bucket.index()].discard(place)
        # In order, even if a later bucket is full first: every rank must send the same messages in the same order.
        while len(self._started) < len(self.buckets) and not self._missing[len(self._started)]:
            self._started.append(self._start(self.buckets[len(self._started)]))

    def _average(self) -> None:
        self._check_all_used()
        for bucket in self.buckets[len(self._started) :]:  # those that wait for a gradient that will not come
            for place in self._missing[bucket.index()]:
                bucket.put(place, self._factor)
            self._started.append(self._start(bucket))
        for bucket, future in zip(self.buckets, self._started, strict=True):
            self._await(bucket, future)
        self._take_out()


def _sum(group: dist.ProcessGroup | None, bucket: Bucket) -> torch.futures.Future[Tensor]:
    return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
