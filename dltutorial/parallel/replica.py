"""What every data-parallel wrapper shares: equal weights at the start, and a call at the end of each backward pass.

In: a module, on each rank with whatever random weights. Out: the same module with rank 0's weights and buffers, whose
gradients a subclass averages over the ranks (``ddp``). The interface is that of torch's
``DistributedDataParallel``; so are the rules:

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
from dltutorial.profile.ranges import annotate


class Replica(nn.Module, Joinable):
    """One of several equal copies of a module. Use a subclass; they differ in when and how gradients are averaged."""

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
            raise CourseError("no process group: a replica is one of several; run inside parallel.launch or torchrun")
        self.module, self.process_group = module, process_group
        self.world_size = dist.get_world_size(process_group)
        self._broadcasts, self._finds_unused = broadcast_buffers, find_unused_parameters
        self._named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not self._named:
            raise CourseError("no parameter of this module is to be trained; set requires_grad, or do without DDP")
        self._check_same_model()
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self._syncs, self._is_under_way = True, False
        for parameter in self._named.values():
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass, after its buffers were brought into line."""
        if self.training and self._syncs and torch.is_grad_enabled():
            Join.notify_join_context(self)
            self._sync_buffers()
        self._is_under_way = False  # a backward pass that failed half-way left it on
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes inside add up on this rank; the next one outside averages their sum.

        Raises:
            CourseError: inside ``Join``, whose ranks could not know which steps stay silent.
        """
        if self._join_config.enable:
            raise CourseError("no_sync() inside Join: ranks that ran out could not follow; use one of the two")
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    @abstractmethod
    def _average(self) -> None:
        """Average all gradients over the ranks; called at the end of each backward pass that synchronises."""

    @abstractmethod
    def _average_zeros(self) -> None:
        """Take part in the others' averaging with zeros: what a rank without input does inside ``Join``."""

    def _begin(self) -> None:
        """The first gradient of a backward pass is there."""

    def _ready(self, parameter: nn.Parameter) -> None:
        """This parameter's gradient is complete."""

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if not self._syncs:
            return
        if not self._is_under_way:
            self._is_under_way = True
            Variable._execution_engine.queue_callback(self._finish)  # autograd calls it when all gradients are there
            self._begin()
        self._ready(parameter)

    def _finish(self) -> None:
        self._is_under_way = False
        with annotate("average gradients"):
            self._average()

    def _check_all_used(self) -> None:
        """Raises: CourseError: a parameter has no gradient here, and that was not allowed for."""
        missing = [name for name, parameter in self._named.items() if parameter.grad is None]
        if missing and not self._finds_unused:
            raise CourseError(
                f"no gradient for {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}: no part of the loss on "
                f"rank {dist.get_rank()}; freeze what is not used, or set find_unused_parameters=True"
            )

    def _used_anywhere(self) -> dict[nn.Parameter, bool]:
        """Which parameters have a gradient on at least one rank; asks the others only if some may have none."""
        parameters = list(self._named.values())
        if not self._finds_unused:
            return dict.fromkeys(parameters, True)
        return self._union([parameter.grad is not None for parameter in parameters])

    def _union(self, has_gradient: list[bool]) -> dict[nn.Parameter, bool]:
        found = torch.tensor(has_gradient, dtype=torch.int32, device=self.join_device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.process_group)
        return dict(zip(self._named.values(), map(bool, found.tolist()), strict=True))

    def _sync_buffers(self) -> None:
        if self._broadcasts:
            broadcast(self.module.buffers(), self.process_group)

    def _check_same_model(self) -> None:
        mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in self.module.named_parameters()]
        everyones: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyones, mine, group=self.process_group)
        for rank, theirs in enumerate(everyones):
            if theirs != everyones[0]:
                odd = sorted(set(theirs) ^ set(everyones[0]))[0]
                raise CourseError(f"rank {rank} holds another model than rank 0 ({odd[0]}); build the same on all")

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What ``Join`` does on a rank whose input has ended."""
        return _AfterTheLastBatch(self)

    @property
    def join_device(self) -> torch.device:
        """Where small messages live."""
        return next(iter(self._named.values())).device

    @property
    def join_process_group(self) -> Any:
        """The ranks that train together."""
        return self.process_group or dist.group.WORLD


class _AfterTheLastBatch(JoinHook):
    """A rank without input answers every message of the others, and at the end takes over their weights."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def main_hook(self) -> None:
        """One step of the others."""
        if self._replica.training:
            self._replica._sync_buffers()
            self._replica._average_zeros()

    def post_hook(self, is_last_joiner: bool) -> None:
        """The weights of a rank that made every step count: those of the highest such rank."""
        replica = self._replica
        rank = dist.get_rank(replica.process_group) if is_last_joiner else -1
        source = torch.tensor([rank], device=replica.join_device)
        dist.all_reduce(source, dist.ReduceOp.MAX, group=replica.process_group)
        module = replica.module
        broadcast([*module.parameters(), *module.buffers()], replica.process_group, int(source))


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None, source: int = 0) -> None:
    """Overwrite tensors with those of one rank, numbered within the group."""
    source = source if group is None else dist.get_global_rank(group, source)
    with torch.no_grad():
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            dist.broadcast(sent, source, group=group)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.copy_(sent)
