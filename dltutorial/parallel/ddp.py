"""Data-parallel training by hand: three modules with the interface of torch's ``DistributedDataParallel``.

The input is a module on each rank, whose random weights may differ. The output is a module with rank 0's weights and
buffers on all ranks. When ``backward()`` returns, its gradients are the mean over all ranks. If all ranks have batches
of the same size, this mean is the gradient of the global batch. Training then equals that of a single process, except
for rounding.

The three modules differ in the number of all-reduces, and in the time at which these start. In the drawing, g4 is the
gradient of layer 4, and [..] is one all-reduce:

    backward pass     g4    g3    g2    g1
    NaiveDDP                               [g4] [g3] [g2] [g1]
    BucketedDDP                            [g4 g3] [g2 g1]
    OverlappedDDP                [g4 g3]   [g2 g1]

- :class:`NaiveDDP` averages one gradient after another when the backward pass is over.
- :class:`BucketedDDP` averages many gradients with one all-reduce.
- :class:`OverlappedDDP` starts the all-reduce of a bucket when the bucket is full, while the backward pass continues.

:class:`ReplicatedModule` has what they share. It has three rules:

- A forward pass in training mode, outside ``no_sync()``, first copies rank 0's buffers to all ranks. Buffers are, for
  example, the running means of batch norm. In evaluation mode nothing is sent, so one rank can evaluate alone.
- Inside ``no_sync()``, each rank accumulates its gradients without communication.
- If the ``.grad`` of a parameter is None at the end of a backward pass, that rank raises an error. After
  ``zero_grad(set_to_none=False)``, an unused parameter has the gradient zero instead, and the zero enters the mean.

Torch's class differs in two rules. It also copies buffers in the first forward pass in evaluation mode after a training
step, so all ranks must evaluate together. It raises an error in the next forward pass if a parameter was unused, even
if its gradient is zero.

Torch's class can do more: ``find_unused_parameters``, ``gradient_as_bucket_view=True`` (each ``.grad`` is a view into
the bucket), and ``Join`` for ranks that have fewer batches than others.

Source: Li et al. 2020 (arXiv:2006.15704), https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.profiler import record_function

from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import DEFAULT_BYTES, FIRST_BYTES
from dltutorial.parallel.buckets import Bucket, make_buckets

Hook = Callable[[Any, Any], torch.futures.Future[Tensor]]  # (state, bucket) → the mean of the bucket over the ranks


class ReplicatedModule(nn.Module):
    """One of several equal copies of a module. Subclasses decide when and how the gradients are averaged."""

    def __init__(self, module: nn.Module) -> None:
        """Copy rank 0's weights and buffers to all ranks, and register a hook for each gradient.

        Args:
            module: The model, already on its device.

        Raises:
            CourseError: The ranks hold different models.
        """
        super().__init__()
        self.module = module
        self.world_size = dist.get_world_size()
        self.trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        check_same_model(module)
        broadcast_tensors([*module.parameters(), *module.buffers()])
        self.sync_enabled = True
        self._in_backward = False
        for parameter in self.trainable.values():
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """When the first gradient is ready, ask autograd to call ``_on_backward_end`` after the last one."""
        if self.sync_enabled and not self._in_backward:
            self._in_backward = True
            # Private API, as in torch's DDP: it runs once, at the end of this backward().
            Variable._execution_engine.queue_callback(self._on_backward_end)

    def _on_backward_end(self) -> None:
        """Average the gradients. Autograd calls this inside ``backward()``, after the last gradient."""
        self._check_all_have_gradients()
        with record_function("average gradients"):
            self.sync_gradients()
        self.reset()

    def _check_all_have_gradients(self) -> None:
        """Raise an error if the ``.grad`` of a parameter is None, because other ranks would wait for it forever."""
        unused = [name for name, parameter in self.trainable.items() if parameter.grad is None]
        if unused:
            raise CourseError(
                f"no gradient for {', '.join(unused)}: no part of the loss on rank {dist.get_rank()}; "
                "freeze what is not used, or take torch's DDP with find_unused_parameters=True"
            )

    @abstractmethod
    def sync_gradients(self) -> None:
        """Average all gradients over the ranks. This runs at the end of each backward pass outside ``no_sync``."""

    def reset(self) -> None:
        """Prepare for the next backward pass. The last one may have failed with an exception."""
        self._in_backward = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Copy rank 0's buffers to all ranks in training, outside ``no_sync()``, and run the module's forward pass."""
        if self.training and self.sync_enabled:
            broadcast_tensors(self.module.buffers())
        self.reset()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank only. The next backward pass outside averages the accumulated gradients."""
        enabled_before = self.sync_enabled
        self.sync_enabled = False
        try:
            yield
        finally:
            self.sync_enabled = enabled_before


class NaiveDDP(ReplicatedModule):
    """All-reduce every gradient, one after the other, after the backward pass."""

    def sync_gradients(self) -> None:
        """Run one all-reduce for each gradient."""
        for parameter in self.trainable.values():
            if parameter.grad is not None:
                # Divide first, because the sum over many ranks may exceed the range of a 16-bit dtype.
                gradient = parameter.grad.detach().contiguous().div_(self.world_size)
                dist.all_reduce(gradient)
                parameter.grad = gradient


class BucketedDDP(ReplicatedModule):
    """Copy the gradients into a few large buckets after the backward pass, and all-reduce the buckets."""

    def __init__(self, module: nn.Module, *, bucket_cap_mb: float | None = None) -> None:
        """Make the buckets.

        Args:
            module: The model, already on its device.
            bucket_cap_mb: A bucket with this many MiB is full. The default is torch's: 1 MiB for the first bucket, and
                25 MiB for the others.
        """
        super().__init__(module)
        cap_bytes = DEFAULT_BYTES
        first_bytes = FIRST_BYTES
        if bucket_cap_mb is not None:
            cap_bytes = first_bytes = int(bucket_cap_mb * 2**20)
        self.buckets = make_buckets(self.trainable.values(), cap_bytes, first_bytes)
        self._hook: Hook = allreduce_hook
        self._hook_state: Any = None

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Average the buckets by ``hook(state, bucket)``, for example by torch's ``fp16_compress_hook``."""
        self._hook_state = state
        self._hook = hook

    def sync_gradients(self) -> None:
        """Fill a bucket, all-reduce it and wait for the result, one bucket after the other."""
        for bucket in self.buckets:
            for parameter in bucket.parameters():
                bucket.copy_in(parameter)
            mean = self.start_all_reduce(bucket)
            self.finish_all_reduce(bucket, mean)

    def start_all_reduce(self, bucket: Bucket) -> torch.futures.Future[Tensor]:
        """Start to average a bucket over the ranks, and return at once."""
        return self._hook(self._hook_state, bucket)

    def finish_all_reduce(self, bucket: Bucket, mean: torch.futures.Future[Tensor]) -> None:
        """Wait for the mean of a bucket, and copy it into the gradients of its parameters."""
        mean_N = mean.wait()
        # A hook may return a new tensor instead of the bucket.
        if mean_N.data_ptr() != bucket.buffer().data_ptr():
            bucket.set_buffer(mean_N)
        bucket.copy_out()


class OverlappedDDP(BucketedDDP):
    """All-reduce a bucket as soon as it is full, while autograd computes the gradients of earlier layers.

    1. Autograd calls ``on_gradient`` for each gradient, beginning with the last layer. The gradient is copied into its
       bucket. If the bucket is full, its all-reduce starts.
    2. At the end of the backward pass, ``sync_gradients`` starts the remaining all-reduces, waits for all of them, and
       copies the means into the gradients.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        """Prepare for the first backward pass. The arguments are those of ``BucketedDDP``."""
        super().__init__(module, **options)
        self._bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters()}
        self.reset()

    def reset(self) -> None:
        """Before each backward pass, mark all gradients as missing and all all-reduces as not started."""
        super().reset()
        self._missing = [set(bucket.parameters()) for bucket in self.buckets]
        self._started: list[torch.futures.Future[Tensor]] = []

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """Copy a gradient that is ready into its bucket, and start the all-reduces of full buckets."""
        super().on_gradient(parameter)
        if not self.sync_enabled:
            return
        bucket = self._bucket_of[parameter]
        bucket.copy_in(parameter)
        self._missing[bucket.index()].discard(parameter)
        self._start_full_buckets()

    def _start_full_buckets(self) -> None:
        """Start all-reduces in the order of the buckets.

        A later bucket may be full first, but it waits, because all ranks must start all-reduces in the same order.
        """
        for bucket in self.buckets[len(self._started) :]:
            if self._missing[bucket.index()]:
                return
            self._started.append(self.start_all_reduce(bucket))

    def sync_gradients(self) -> None:
        """Start the remaining all-reduces, wait for all of them, and copy the means into the gradients."""
        # Parameters unused in this pass still have a gradient, for example from no_sync(). Copy it in.
        for bucket in self.buckets[len(self._started) :]:
            for parameter in self._missing[bucket.index()]:
                bucket.copy_in(parameter)
            self._started.append(self.start_all_reduce(bucket))
        for bucket, mean in zip(self.buckets, self._started, strict=True):
            self.finish_all_reduce(bucket, mean)


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Overwrite the tensors of all ranks with those of rank 0. The tensors may have any memory layout."""
    with torch.no_grad():
        for tensor in tensors:
            contiguous = tensor.contiguous()
            dist.broadcast(contiguous, 0)
            if contiguous.data_ptr() != tensor.data_ptr():
                tensor.copy_(contiguous)


def check_same_model(module: nn.Module) -> None:
    """Compare the parameters of all ranks: their order, names, shapes, dtypes, and whether they are trainable.

    Raises:
        CourseError: A rank holds another model than rank 0. The message names the first parameter that differs.
    """
    descriptions = [describe(name, parameter) for name, parameter in module.named_parameters()]
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, descriptions)
    for rank, theirs in enumerate(by_rank):
        for number, (actual, expected) in enumerate(zip_longest(theirs, by_rank[0], fillvalue="missing")):
            if actual != expected:
                raise CourseError(
                    f"rank {rank} holds another model than rank 0 "
                    f"(parameter {number} is {actual}, on rank 0 {expected}); build the same on all"
                )


def describe(name: str, parameter: nn.Parameter) -> str:
    """Describe a parameter, for example as ``weight (2, 3) float32``."""
    description = f"{name} {tuple(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}"
    if not parameter.requires_grad:
        description += " frozen"
    return description
