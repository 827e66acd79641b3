"""Data-parallel training three times over, each beside torch's ``DistributedDataParallel`` and with its interface.

In: a module, on each rank with whatever random weights. Out: the same module with rank 0's weights and buffers, whose
gradients are the mean over all ranks when ``backward()`` returns. With equal batches on all ranks that is the gradient
of the whole global batch, so that training equals that of a single process up to rounding.

- :class:`NaiveDDP` averages one gradient after another when the backward pass is over;
- :class:`BucketedDDP` sends many gradients in one message;
- :class:`OverlappedDDP` sends a bucket as soon as it is full, while the backward pass goes on.

What they share is in :class:`ReplicatedModule`. The rules are torch's:

- buffers (such as batch norm's running means) are rank 0's at the start of every training forward pass;
- inside ``no_sync()`` gradients add up on each rank and nobody talks;
- a parameter that took no part in the loss is an error, or with ``find_unused_parameters`` counts as zero on the ranks
  that did not use it, and keeps no gradient where no rank did; some parameter must be used on each rank;
- ranks with fewer batches than others need ``torch.distributed.algorithms.Join``, else the others wait for ever.

Source: Li et al. 2020 (arXiv:2006.15704), https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import DEFAULT_BYTES, FIRST_BYTES
from dltutorial.parallel.buckets import Bucket, make_buckets
from dltutorial.parallel.comm_hooks import Hook, all_reduced
from dltutorial.profile.ranges import annotate


class ReplicatedModule(nn.Module, Joinable):
    """One of several equal copies of a module. Its subclasses differ in when and how gradients are averaged."""

    def __init__(
        self,
        module: nn.Module,
        *,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Take over rank 0's weights and buffers, and listen to every gradient.

        Args:
            module: the model, already on its device.
            broadcast_buffers: take over rank 0's buffers before every training forward pass.
            find_unused_parameters: allow parameters that take no part in the loss; costs one small message a step.
            process_group: of the ranks that train together; default: all.

        Raises:
            CourseError: no process group, nothing to train, or ranks that hold different models.
        """
        super().__init__()
        Joinable.__init__(self)
        if not dist.is_initialized():
            raise CourseError("no process group: a replica is one of several; run inside launch(f, n) or torchrun")
        self.module, self.process_group = module, process_group
        self.world_size = dist.get_world_size(process_group)
        self.trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self.trained:
            raise CourseError("no parameter of this module is to be trained; set requires_grad, or do without DDP")
        self._broadcasts, self._finds_unused = broadcast_buffers, find_unused_parameters
        check_same_model(module, process_group)
        broadcast_tensors([*module.parameters(), *module.buffers()], process_group)
        self.syncs, self._in_backward = True, False
        for parameter in self.trained.values():
            parameter.register_post_accumulate_grad_hook(self._on_any_gradient)

    def _on_any_gradient(self, parameter: nn.Parameter) -> None:
        """The first gradient of a backward pass asks autograd to call back when all of them are there."""
        if self.syncs and not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self._on_backward_end)

    def _on_backward_end(self) -> None:
        missing = [name for name, parameter in self.trained.items() if parameter.grad is None]
        if missing and not self._finds_unused:
            raise CourseError(
                f"no gradient for {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}: no part of the loss on "
                f"rank {dist.get_rank()}; freeze what is not used, or set find_unused_parameters=True"
            )
        with annotate("average gradients"):
            self.sync_gradients()
        self.reset()

    @abstractmethod
    def sync_gradients(self) -> None:
        """Average all gradients over the ranks; called at the end of each backward pass outside ``no_sync``."""

    @abstractmethod
    def send_zeros(self) -> None:
        """Answer the messages of the others' ``sync_gradients`` with zeros: a rank without input inside ``Join``."""

    def reset(self) -> None:
        """Be ready for the next backward pass, also after one that failed half-way."""
        self._in_backward = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass, after its buffers were brought into line."""
        if self.training and self.syncs and torch.is_grad_enabled():
            Join.notify_join_context(self)
            self.sync_buffers()
        self.reset()
        return self.module(*args, **kwargs)

    def sync_buffers(self) -> None:
        """Take over rank 0's buffers."""
        if self._broadcasts:
            broadcast_tensors(self.module.buffers(), self.process_group)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes inside add up on this rank; the next one outside averages their sum.

        Raises:
            CourseError: inside ``Join``, whose ranks could not know which steps stay silent.
        """
        if self._join_config.enable:
            raise CourseError("no_sync() inside Join: ranks that ran out could not follow; use one of the two")
        before, self.syncs = self.syncs, False
        try:
            yield
        finally:
            self.syncs = before

    def used_on_any_rank(self, used_here: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Which parameters at least one rank has used; asks the others only if some may be unused."""
        trained, used_here = list(self.trained.values()), set(used_here)
        if not self._finds_unused:
            return trained
        used = torch.tensor([p in used_here for p in trained], dtype=torch.int32, device=self.join_device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self.process_group)
        return [parameter for parameter, is_used in zip(trained, used.tolist(), strict=True) if is_used]

    def with_gradient(self) -> list[nn.Parameter]:
        """The parameters that this rank has used."""
        return [parameter for parameter in self.trained.values() if parameter.grad is not None]

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What ``Join`` does on a rank whose input has ended."""
        return _AfterTheLastBatch(self)

    @property
    def join_device(self) -> torch.device:
        """Where small messages live."""
        return next(iter(self.trained.values())).device

    @property
    def join_process_group(self) -> Any:
        """The ranks that train together."""
        return self.process_group or dist.group.WORLD


class NaiveDDP(ReplicatedModule):
    """All-reduce every gradient, one by one, after the backward pass."""

    def sync_gradients(self) -> None:
        """Average what at least one rank has used; a gradient that is missing here counts as zero."""
        for parameter in self.used_on_any_rank(self.with_gradient()):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self._mean(gradient)

    def send_zeros(self) -> None:
        """One message for each gradient of the others."""
        for parameter in self.used_on_any_rank([]):
            self._mean(torch.zeros_like(parameter))

    def _mean(self, gradient: Tensor) -> Tensor:
        message = gradient.detach().contiguous().div_(self.world_size)
        dist.all_reduce(message, group=self.process_group)
        return message


class BucketedDDP(ReplicatedModule):
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
            **options: of ``ReplicatedModule``.

        Raises:
            CourseError: as ``ReplicatedModule``.
        """
        super().__init__(module, **options)
        sizes = (DEFAULT_BYTES, FIRST_BYTES) if bucket_cap_mb is None else (int(bucket_cap_mb * 2**20),)
        self.buckets = make_buckets(self.trained.values(), *sizes)
        self.factor = 1 / self.world_size  # divided first: a sum of many ranks could leave the range of 16 bits
        self._as_view = gradient_as_bucket_view
        self._hook: Hook = all_reduced
        self._hook_state: Any = self.process_group

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Let ``hook(state, bucket)`` average the buckets: torch's hooks work, such as ``fp16_compress_hook``."""
        self._hook_state, self._hook, self.factor = state, hook, 1.0  # it divides for itself

    def sync_gradients(self) -> None:
        """Fill a bucket, send it, wait for it; then the next one."""
        for bucket in self.buckets:
            for parameter in bucket.parameters():
                bucket.copy_in(parameter, self.factor)
            self.receive(bucket, self.send(bucket))
        self.copy_out()

    def send_zeros(self) -> None:
        """One message for each bucket of the others."""
        for bucket in self.buckets:
            bucket.buffer().zero_()
            self.send(bucket).wait()
        self.used_on_any_rank([])

    def send(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Start to average a bucket over the ranks, and return at once."""
        return self._hook(self._hook_state, bucket)

    def receive(self, bucket: Bucket, averaged: torch.futures.Future[Tensor]) -> None:
        """Wait for a bucket's average."""
        averaged_N = averaged.wait()
        averaged_N = averaged_N[0] if isinstance(averaged_N, (list, tuple)) else averaged_N  # an all-reduce's own
        if averaged_N.data_ptr() != bucket.buffer().data_ptr():
            bucket.set_buffer(averaged_N)

    def copy_out(self) -> None:
        """Give every parameter that some rank has used its gradient from the buckets."""
        used = set(self.used_on_any_rank(self.with_gradient()))
        for bucket in self.buckets:
            bucket.copy_out(used, self._as_view)


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
        bucket.copy_in(parameter, self.factor)
        self._missing[bucket.index()].pop(parameter, None)
        # In order, even if a later bucket is full first: every rank must send the same messages in the same order.
        while len(self._under_way) < len(self.buckets) and not self._missing[len(self._under_way)]:
            self._under_way.append(self.send(self.buckets[len(self._under_way)]))

    def sync_gradients(self) -> None:
        """The backward pass is over."""
        for bucket in self.buckets[len(self._under_way) :]:  # they wait for a gradient that will not come
            for parameter in self._missing[bucket.index()]:
                bucket.copy_in(parameter, self.factor)
            self._under_way.append(self.send(bucket))
        for bucket, averaged in zip(self.buckets, self._under_way, strict=True):
            self.receive(bucket, averaged)
        self.copy_out()


class _AfterTheLastBatch(JoinHook):
    """A rank without input answers every message of the others, and at the end takes over their weights."""

    def __init__(self, replica: ReplicatedModule) -> None:
        self._replica = replica

    def main_hook(self) -> None:
        """One step of the others."""
        if self._replica.training:
            self._replica.sync_buffers()
            self._replica.send_zeros()

    def post_hook(self, is_last_joiner: bool) -> None:
        """The weights of a rank that made every step count: those of the highest such rank."""
        replica = self._replica
        rank = dist.get_rank(replica.process_group) if is_last_joiner else -1
        source = torch.tensor([rank], device=replica.join_device)
        dist.all_reduce(source, dist.ReduceOp.MAX, group=replica.process_group)
        module = replica.module
        broadcast_tensors([*module.parameters(), *module.buffers()], replica.process_group, int(source))


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
    """Compare names, shapes and dtypes of the parameters over the ranks.

    Raises:
        CourseError: a rank holds another model.
    """
    mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in module.named_parameters()]
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, mine, group=group)
    for rank, theirs in enumerate(everyones):
        if theirs != everyones[0]:
            odd = sorted(set(theirs) ^ set(everyones[0]))[0]
            raise CourseError(f"rank {rank} holds another model than rank 0 ({odd[0]}); build the same on all")
