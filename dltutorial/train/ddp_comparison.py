"""Data-parallel wrappers side by side: the same model, the same batches, steps in turn, inside one launch.

In: a recipe and the names of wrappers. Out: seconds of a step for each, of the slowest rank; or one rank's trace. The
times are those of whole updates: forward, backward, averaging, optimizer. ``measure_parts`` measures what
``bucket_model`` predicts them from, before any wrapper runs.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

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
from dltutorial.train.step import make_optimizer, train_step

_LARGE_BYTES = 2**23
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
    slowest = {name: max(times[name] for times in by_rank) for name in by_rank[0] if name != "gradient_bytes"}
    rest_s = slowest["forward"] + slowest["optimizer"]
    step = Step(tuple(by_rank[0]["gradient_bytes"]), slowest["backward"], rest_s)
    return step, Link(slowest["small"], _LARGE_BYTES / max(slowest["large"] - slowest["small"], 1e-9))


def make_update(recipe: Recipe, name: str, options: Mapping) -> Callable[[], Tensor]:
    """One update of a wrapped model on this rank's share of a batch that is there already; call it on every rank."""
    x_BCHW, y_BCHW = _share(recipe)
    model = WRAPPERS[name](forecasting.build_model(recipe), **options)
    optimizer = make_optimizer(model, recipe)
    return lambda: train_step(model, (x_BCHW, y_BCHW), forecasting.squared_error, optimizer)


def _compare_here(recipe: Recipe, names: Sequence[str], repeats: int, options: Mapping) -> dict[str, list[float]]:
    return _times({name: make_update(recipe, name, options) for name in names}, repeats)


def _parts_here(recipe: Recipe, repeats: int) -> dict[str, Any]:
    model, kept = forecasting.build_model(recipe), dict[str, Tensor]()
    optimizer, (x_BCHW, y_BCHW) = make_optimizer(model, recipe), _share(recipe)
    messages = {"small": torch.zeros(1, device=x_BCHW.device), "large": torch.zeros(_LARGE_BYTES // 4).to(x_BCHW)}
    found = _times(
        {
            "forward": lambda: kept.update(loss=(model(x_BCHW) - y_BCHW).square().mean()),
            "backward": lambda: kept["loss"].backward(),
            "optimizer": lambda: (optimizer.step(), optimizer.zero_grad()),
            "small": lambda: dist.all_reduce(messages["small"]),
            "large": lambda: dist.all_reduce(messages["large"]),
        },
        repeats,
    )
    sizes = [p.numel() * p.element_size() for p in model.parameters() if p.requires_grad]
    # Of messages the quickest: their cost is that of the network, and a busy machine only adds to it.
    typical = {name: (min if name in messages else statistics.median)(times) for name, times in found.items()}
    return typical | {"gradient_bytes": sizes[::-1]}


def _share(recipe: Recipe) -> tuple[Tensor, Tensor]:
    """This rank's part of a batch."""
    shape = (max(1, recipe.global_batch_size // dist.get_world_size()), recipe.n_channels, recipe.n_lat, recipe.n_lon)
    return torch.randn(shape, device=machine.device()), torch.randn(shape, device=machine.device())


def _times(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of actions in turn; all ranks begin each one together."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(repeats + 2):
        for name, act in actions.items():
            dist.barrier()
            begun_s = time.perf_counter()
            act()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat >= 2:  # the first ones make the optimizer's averages, and torch's DDP its final buckets
                times[name].append(time.perf_counter() - begun_s)
    return times


def _trace_here(recipe: Recipe, name: str, steps: int, options: Mapping) -> Trace | None:
    found = trace.take(make_update(recipe, name, options), steps=steps)
    return found if dist.get_rank() == 0 else None
