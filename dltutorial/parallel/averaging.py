"""Gradients averaged over the ranks while the backward pass still runs.

In: a model with the same weights on every rank. Out: the same gradients on every rank, the means of all. Parameters
are put into buckets once, last ones first, since the backward pass gets to those first; when all gradients of a bucket
are there, it is sent. Li et al. 2020, "PyTorch Distributed", section 3.2 (arXiv:2006.15704).

Torch's ``DistributedDataParallel`` does the same and once more sorts its buckets by what it saw in the first pass. A
sum of three numbers or more depends on its order, so a run that is resumed would differ from one that is not in its
last bits. Here the buckets stay as they are.
"""

import itertools

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 25 * 2**20


class _Bucket:
    """Some parameters, and a flat copy of their gradients."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.missing = parameters, len(parameters)
        self.flat = torch.empty(sum(p.numel() for p in parameters), dtype=parameters[0].dtype).to(parameters[0].device)
        parts = self.flat.split([p.numel() for p in parameters])
        self.parts = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
        self.work: dist.Work | None = None

    def send(self) -> None:
        """Begin to sum over the ranks."""
        torch._foreach_copy_(self.parts, [p.grad for p in self.parameters])
        self.flat.div_(dist.get_world_size())
        self.work = dist.all_reduce(self.flat, async_op=True)

    def receive(self) -> None:
        """Wait for the sum, and put it where the optimizer looks."""
        self.work.wait()
        torch._foreach_copy_([p.grad for p in self.parameters], self.parts)
        self.missing, self.work = len(self.parameters), None


class Averaging:
    """Call it after each backward pass; every parameter that needs a gradient must have got one."""

    def __init__(self, model: nn.Module, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._buckets = [_Bucket(parameters) for parameters in _grouped(model, bucket_bytes)]
        self._sent = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._has_come(bucket))

    def __call__(self) -> None:
        """Wait until all gradients are means.

        Raises:
            RuntimeError: a parameter had no part in the loss, or the ranks lost each other.
        """
        if self._sent < len(self._buckets):
            raise RuntimeError("a parameter that needs a gradient got none in this backward pass")
        for bucket in self._buckets:
            bucket.receive()
        self._sent = 0

    def _has_come(self, bucket: _Bucket) -> None:
        """Buckets go out in their own order, the same on every rank, whichever is full first."""
        bucket.missing -= 1
        while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
            self._buckets[self._sent].send()
            self._sent += 1


def _grouped(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Parameters from the last to the first, cut where a bucket is full or the type changes."""
    groups: list[list[nn.Parameter]] = []
    wanted = [p for p in model.parameters() if p.requires_grad]
    for _, alike in itertools.groupby(reversed(wanted), key=lambda p: (p.dtype, p.device)):
        full = bucket_bytes
        for parameter in alike:
            if full >= bucket_bytes:
                groups.append([])
                full = 0
            groups[-1].append(parameter)
            full += _bytes(parameter)
    return groups


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
