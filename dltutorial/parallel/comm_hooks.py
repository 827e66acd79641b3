"""How a bucket is averaged: exactly, or squeezed into 16 bits on the way.

In: a process group (None: all ranks) and a bucket, as torch's communication hooks take them. Out: a future of the
averaged flat tensor. Such a hook works on our classes and on torch's DDP. Torch brings more of them, PowerSGD among
them: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html

Legend: N numbers in the bucket.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Hook = Callable[[Any, Any], torch.futures.Future[Tensor]]  # (state, bucket)


def all_reduced(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The sum, for who has divided already."""
    return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()


def mean(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The exact mean. Each rank divides first: a sum of many ranks could leave the range of 16-bit gradients."""
    flat_N = bucket.buffer().div_(dist.get_world_size(group))
    return dist.all_reduce(flat_N, group=group, async_op=True).get_future().then(_first)


def scaled_fp16(scale: float = 1024.0) -> Hook:
    """Make a hook with half the bytes: multiply, round to fp16, add up, divide again.

    Below 6e-8 an fp16 number is zero and below 6e-5 it loses digits; gradients often are that small. A power of two
    lifts them, exactly as loss scaling does. What is lifted beyond 65504 becomes infinite, and is seen at once.
    """

    def fp16(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        flat_N = bucket.buffer()
        small_N = flat_N.mul(scale / dist.get_world_size(group)).to(torch.float16)
        sent = dist.all_reduce(small_N, group=group, async_op=True).get_future()
        return sent.then(lambda done: flat_N.copy_(_first(done)).div_(scale))

    return fp16


def relative_error(got: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """Length of the difference over the length of the exact gradients, all parameters together."""
    got_N, exact_N = (torch.cat([t.double().flatten() for t in tensors]) for tensors in (got, exact))
    return float((got_N - exact_N).norm() / exact_N.norm())


def _first(done: torch.futures.Future) -> Tensor:
    value = done.value()
    return value[0] if isinstance(value, (list, tuple)) else value
