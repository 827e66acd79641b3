"""Data-parallel wrappers side by side: the same model, the same batches, steps in turn, inside one launch.

In: a recipe and the names of wrappers. Out: seconds of a step for each, of the slowest rank; or one rank's trace. The
times are those of whole updates: forward, backward, averaging, optimizer. ``measure_parts`` measures what
``bucket_model`` predicts them from, before any wrapper runs.
"""

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dltutorial import machine
from dltutorial.config import Recipe
from dltutorial.errors import CourseError
from dltutorial.launch import launch
from dltutorial.parallel.bucket_model import Link, Step
from dltutorial.parallel.ddp import BucketedDDP, NaiveDDP, OverlappedDDP
from dltutorial.profile import trace
from dltutorial.profile.events import Trace
from dltutorial.profile.timing import Timing
from dltutorial.train import forecasting
from dltutorial.train.optim import make_optimizer
from dltutorial.train.step import train_step

_SMALL_BYTES, _LARGE_BYTES = 4, 2**23
ALONE, TORCH = "no communication", "torch DDP"
WRAPPERS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({
    ALONE: lambda module, **options: module,
    "naive": lambda module, **options: NaiveDDP(module),
    "bucketed": BucketedDDP,
    "overlapped": OverlappedDDP,
    TORCH: nn.parallel.DistributedDataParallel,
})  # fmt: skip


def compare(
    world_size: int,
    recipe: Recipe,
    names: Sequence[str] = tuple(WRAPPERS),
    repeats: int = 7,
    timeout_s: float = 300.0,
    **options: Any,
) -> dict[str, Timing]:
    """Seconds of one update with each wrapper, as the slowest rank saw it.

    Args:
        world_size: ranks on this machine.
        recipe: the model, and the global batch.
        names: keys of ``WRAPPERS``.
        repeats: measured steps of each.
        timeout_s: for all.
        **options: of wrappers that have buckets: ``bucket_cap_mb``, ``gradient_as_bucket_view``.

    Raises:
        CourseError: no such wrapper.
    """
    if unknown := set(names) - set(WRAPPERS):
        raise CourseError(f"no wrapper {min(unknown)!r}; choose from: {', '.join(WRAPPERS)}")
    by_rank = launch(_compare_here, world_size, recipe, tuple(names), repeats, options, timeout_s=timeout_s)
    return {name: Timing(tuple(map(max, zip(*(times[name] for times in by_rank), strict=True)))) for name in names}


def trace_of(world_size: int, recipe: Recipe, name: str, steps: int = 2, **options: Any) -> Trace:
    """Rank 0's trace of some updates."""
    return launch(_trace_here, world_size, recipe, name, steps, options)[0]


def measure_parts(world_size: int, recipe: Recipe, repeats: int = 7, timeout_s: float = 120.0) -> tuple[Step, Link]:
    """What a step consists of without communication, and what a message costs; the slowest rank counts."""
    by_rank = launch(_parts_here, world_size, recipe, repeats, timeout_s=timeout_s)
    slowest = {name: max(times[name] for times in by_rank) for name in ("forward", "backward", "optimizer")}
    latency_s, large_s = (max(times[n_bytes] for times in by_rank) for n_bytes in (_SMALL_BYTES, _LARGE_BYTES))
    rest_s = slowest["forward"] + slowest["optimizer"]
    step = Step(tuple(by_rank[0]["gradient_bytes"]), slowest["backward"], rest_s)
    return step, Link(latency_s, _LARGE_BYTES / max(large_s - latency_s, 1e-9))


def make_update(recipe: Recipe, name: str, options: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
    """One update of a wrapped model on this rank's share of a batch that is there already; call it on every rank."""
    x_BCHW, y_BCHW = _share(recipe, machine.device())
    model = WRAPPERS[name](forecasting.build_model(recipe), **options)
    optimizer = make_optimizer(model, recipe)
    return lambda: train_step(model, (x_BCHW, y_BCHW), forecasting.squared_error, optimizer)


def _compare_here(
    recipe: Recipe, names: Sequence[str], repeats: int, options: Mapping[str, Any]
) -> dict[str, list[float]]:
    updates = {name: make_update(recipe, name, options) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats + 2):
        for name, update in updates.items():
            seconds = _seconds(update)
            if repeat >= 2:  # the first ones make the optimizer's averages, and torch's DDP its final buckets
                times[name].append(seconds)
    return times


def _parts_here(recipe: Recipe, repeats: int) -> dict[Any, Any]:
    device, model = machine.device(), forecasting.build_model(recipe)
    optimizer = make_optimizer(model, recipe)
    x_BCHW, y_BCHW = _share(recipe, device)
    kept: dict[str, torch.Tensor] = {}
    parts: dict[Any, Callable[[], Any]] = {
        "forward": lambda: kept.update(loss=(model(x_BCHW) - y_BCHW).square().mean()),
        "backward": lambda: kept["loss"].backward(),
        "optimizer": lambda: (optimizer.step(), optimizer.zero_grad()),
    }
    for n_bytes in (_SMALL_BYTES, _LARGE_BYTES):
        message = torch.zeros(n_bytes // 4, device=device)
        parts[n_bytes] = functools.partial(dist.all_reduce, message)
    times: dict[Any, list[float]] = {name: [] for name in parts}
    for _ in range(repeats + 2):
        for name, part in parts.items():
            times[name].append(_seconds(part))
    sizes = [p.numel() * p.element_size() for p in model.parameters() if p.requires_grad]
    # Of messages the quickest: their cost is that of the network, and a busy machine only adds to it.
    typical = {name: (statistics.median if isinstance(name, str) else min)(v[2:]) for name, v in times.items()}
    return typical | {"gradient_bytes": sizes[::-1]}


def _share(recipe: Recipe, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of a batch."""
    shape = (max(1, recipe.global_batch_size // dist.get_world_size()), recipe.n_channels, recipe.n_lat, recipe.n_lon)
    return torch.randn(shape, device=device), torch.randn(shape, device=device)


def _seconds(update: Callable[[], Any]) -> float:
    """Of one update, or a part of one, that all ranks begin together."""
    dist.barrier()
    begun_s = time.perf_counter()
    update()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun_s


def _trace_here(recipe: Recipe, name: str, steps: int, options: Mapping[str, Any]) -> Trace | None:
    found = trace.take(make_update(recipe, name, options), steps=steps)
    return found if dist.get_rank() == 0 else None
