"""Data-parallel training three times over, each beside torch's ``DistributedDataParallel`` and with its interface.

In: a module, on each rank with whatever random weights. Out: the same module with rank 0's weights and buffers, whose
gradients are the mean over all ranks when ``backward()`` returns. With equal batches on all ranks that is the gradient
of the whole global batch, so that training equals that of a single process up to rounding.

- :class:`NaiveDDP` averages one gradient after another when the backward pass is over;
- :class:`BucketedDDP` sends many gradients in one message;
- :class:`OverlappedDDP` sends a bucket as soon as it is full, while the backward pass goes on.

What they share is in :class:`ReplicatedModule`. The rules are torch's:

- buffers (batch norm's means) are rank 0's when a training forward pass starts, except after one in ``no_sync()``;
- inside ``no_sync()`` gradients add up on each rank and nobody talks;
- a parameter that took no part in the loss is an error on the rank that did not use it.

What torch's has beyond that: ``find_unused_parameters``, gradients that live in the buckets, and ``Join`` for ranks
with fewer batches than others.

Source: Li et al. 2020 (arXiv:2006.15704), https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import DEFAULT_BYTES, FIRST_BYTES
from dltutorial.parallel.buckets import Bucket, make_buckets
from dltutorial.profile.ranges import annotate

Hook = Callable[[Any, Any], torch.futures.Future[Tensor]]  # (state, bucket) → the bucket's mean over the ranks


class ReplicatedModule(nn.Module):
    """One of several equal copies of a module. Its subclasses differ in when and how gradients are averaged."""

    def __init__(self, module: nn.Module, *, process_group: dist.ProcessGroup | None = None) -> None:
        """Take over rank 0's weights and buffers, and listen to every gradient.

        Args:
            module: the model, already on its device.
            process_group: of the ranks that train together; default: all.

        Raises:
            CourseError: no process group, nothing to train, or ranks that hold different models.
        """
        super().__init__()
        if not dist.is_initialized():
            raise CourseError("no process group: a replica is one of several; run inside launch(f, n) or torchrun")
        self.module, self.process_group = module, process_group
        self.world_size = dist.get_world_size(process_group)
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self.trained:
            raise CourseError("no parameter of this module is to be trained; set requires_grad, or do without DDP")
        check_same_model(module, process_group)
        broadcast_tensors([*module.parameters(), *module.buffers()], process_group)
        self.syncs, self._buffers_too, self._in_backward = True, True, False
        for parameter in self.trained.values():
            parameter.register_post_accumulate_grad_hook(self._on_any_gradient)

    def _on_any_gradient(self, parameter: nn.Parameter) -> None:
        """The first gradient of a backward pass asks autograd to call back when all of them are there."""
        if self.syncs and not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self._on_backward_end)

    def _on_backward_end(self) -> None:
        missing = [name for name, parameter in self.trained.items() if parameter.grad is None]
        if missing:
            told = f"no gradient for {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}: no part of the loss on"
            todo = "freeze what is not used, or take torch's DDP with find_unused_parameters=True"
            raise CourseError(f"{told} rank {dist.get_rank()}; {todo}")
        with annotate("average gradients"):
            self.sync_gradients()
        self.reset()

    @abstractmethod
    def sync_gradients(self) -> None:
        """Average all gradients over the ranks; called at the end of each backward pass outside ``no_sync``."""

    def reset(self) -> None:
        """Be ready for the next backward pass, also after one that failed half-way."""
        self._in_backward = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass, after its buffers were brought into line."""
        if self.training and self._buffers_too:
            broadcast_tensors(self.module.buffers(), self.process_group)
        self._buffers_too = self.syncs and torch.is_grad_enabled()
        self.reset()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes inside add up on this rank; the next one outside averages their sum."""
        before, self.syncs = self.syncs, False
        try:
            yield
        finally:
            self.syncs = before


class NaiveDDP(ReplicatedModule):
    """All-reduce every gradient, one by one, after the backward pass."""

    def sync_gradients(self) -> None:
        """One message for each gradient. Divided first: a sum of many ranks could leave the range of 16 bits."""
        for parameter in self.trained.values():
            if parameter.grad is not None:
                message = parameter.grad.detach().contiguous().div_(self.world_size)
                dist.all_reduce(message, group=self.process_group)
                parameter.grad = message


class BucketedDDP(ReplicatedModule):
    """Copy gradients into a few large buckets after the backward pass, and all-reduce those, one by one."""

    def __init__(self, module: nn.Module, *, bucket_cap_mb: float | None = None, **options: Any) -> None:
        """Make the buckets.

        Args:
            module: the model, already on its device.
            bucket_cap_mb: MiB with which a bucket is full; default, as torch's: 25, and 1 for the first bucket.
            **options: of ``ReplicatedModule``.

        Raises:
            CourseError: as ``ReplicatedModule``.
        """
        super().__init__(module, **options)
        sizes = (DEFAULT_BYTES, FIRST_BYTES) if bucket_cap_mb is None else (int(bucket_cap_mb * 2**20),)
        self.buckets = make_buckets(self.trained.values(), *sizes)
        self._hook: Hook = allreduce_hook
        self._hook_state: Any = self.process_group

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Let ``hook(state, bucket)`` average the buckets: torch's hooks work, such as ``fp16_compress_hook``."""
        self._hook_state, self._hook = state, hook

    def sync_gradients(self) -> None:
        """Fill a bucket, send it, wait for it; then the next one."""
        for bucket in self.buckets:
            for parameter in bucket.parameters():
                bucket.copy_in(parameter)
            self.receive(bucket, self.send(bucket))

    def send(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Start to average a bucket over the ranks, and return at once."""
        return self._hook(self._hook_state, bucket)

    def receive(self, bucket: Bucket, averaged: torch.futures.Future[Tensor]) -> None:
        """Wait for a bucket's average, and give the parameters their gradients back."""
        averaged_N = averaged.wait()
        if averaged_N.data_ptr() != bucket.buffer().data_ptr():
            bucket.set_buffer(averaged_N)
        bucket.copy_out()


class OverlappedDDP(BucketedDDP):
    """Send a bucket when its last gradient arrives, while autograd works on the layers before.

    1. Autograd calls ``on_gradient`` for each gradient, last layer first: it goes into its bucket; a full one leaves.
    2. ``sync_gradients``, at the end of the backward pass, sends what is left, waits, and gives the averages back.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        """As ``BucketedDDP``."""
        super().__init__(module, **options)
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters()}
        self.reset()
        for parameter in self.trained.values():
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def reset(self) -> None:
        """Before each backward pass: the gradients that each bucket misses, and the messages under way."""
        super().reset()
        self._missing = [dict.fromkeys(bucket.parameters()) for bucket in self.buckets]
        self._under_way: list[torch.futures.Future[Tensor]] = []

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """This parameter's gradient is complete."""
        if not self.syncs:
            return
        bucket = self._bucket_of[parameter]
        bucket.copy_in(parameter)
        self._missing[bucket.index()].pop(parameter, None)
        # In order, even if a later bucket is full first: every rank must send the same messages in the same order.
        while len(self._under_way) < len(self.buckets) and not self._missing[len(self._under_way)]:
            self._under_way.append(self.send(self.buckets[len(self._under_way)]))

    def sync_gradients(self) -> None:
        """The backward pass is over."""
        for bucket in self.buckets[len(self._under_way) :]:  # they wait for a gradient of an earlier, silent pass
            for parameter in self._missing[bucket.index()]:
                bucket.copy_in(parameter)
            self._under_way.append(self.send(bucket))
        for bucket, averaged in zip(self.buckets, self._under_way, strict=True):
            self.receive(bucket, averaged)


def broadcast_tensors(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None, source: int = 0) -> None:
    """Overwrite tensors with those of one rank, numbered within the group."""
    source = source if group is None else dist.get_global_rank(group, source)
    with torch.no_grad():
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            dist.broadcast(sent, source, group=group)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)


def check_same_model(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Compare names, shapes and dtypes of the parameters over the ranks. CourseError: a rank holds another model."""
    mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in module.named_parameters()]
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, mine, group=group)
    for rank, theirs in enumerate(everyones):
        if theirs != everyones[0]:
            odd = sorted(set(theirs) ^ set(everyones[0]))[0]
            raise CourseError(f"rank {rank} holds another model than rank 0 ({odd[0]}); build the same on all")
