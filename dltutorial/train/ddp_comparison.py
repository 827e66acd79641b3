"""Data-parallel wrappers side by side: the same model, the same batches, updates in turn, inside one launch.

In: a recipe and the names of wrappers. Out: seconds of a whole update (forward, backward, averaging, optimizer) with
each of them, as the slowest rank saw it; or what ``parallel.bucket_model`` predicts them from.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dltutorial import machine
from dltutorial.comm.stopwatch import slowest
from dltutorial.config import Recipe
from dltutorial.launch import launch
from dltutorial.parallel.bucket_model import Link, Step
from dltutorial.parallel.ddp import BucketedDDP, NaiveDDP, OverlappedDDP
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
    world_size: int, recipe: Recipe, names: Sequence[str] = tuple(WRAPPERS), repeats: int = 7, **options: Any
) -> dict[str, Timing]:
    """Seconds of an update with each wrapper.

    Args:
        world_size: ranks on this machine.
        recipe: the model, and the global batch.
        names: keys of ``WRAPPERS``.
        repeats: measured updates of each.
        **options: of wrappers that have buckets: ``bucket_cap_mb``.
    """

    def on_rank() -> dict[str, list[float]]:
        return in_turn({name: make_update(recipe, name, options) for name in names}, repeats)

    return slowest(launch(on_rank, world_size, timeout_s=300.0))


def measure_parts(world_size: int, recipe: Recipe, repeats: int = 7) -> tuple[Step, Link]:
    """What an update consists of without communication, and what a message costs."""
    found = slowest(launch(_parts_on_rank, world_size, recipe, repeats, timeout_s=120.0))
    trained = [p for p in forecasting.build_model(recipe).parameters() if p.requires_grad]
    sizes = tuple(p.numel() * p.element_size() for p in reversed(trained))
    step = Step(sizes, found["backward"].median_s, found["forward"].median_s + found["optimizer"].median_s)
    # Of messages the quickest: their cost is that of the network, and a busy machine only adds to it.
    small_s, large_s = found["small"].best_s, found["large"].best_s
    return step, Link(small_s, _LARGE_BYTES / max(large_s - small_s, 1e-9))


def make_update(recipe: Recipe, name: str, options: Mapping) -> Callable[[], Tensor]:
    """One update of a wrapped model on this rank's share of a batch that is there already; call it on every rank."""
    model = WRAPPERS[name](forecasting.build_model(recipe), **options)
    batch, optimizer = share(recipe), make_optimizer(model, recipe)
    return lambda: train_step(model, batch, forecasting.squared_error, optimizer)


def _parts_on_rank(recipe: Recipe, repeats: int) -> dict[str, list[float]]:
    model, kept = forecasting.build_model(recipe), dict[str, Tensor]()
    optimizer, (x_BCHW, y_BCHW) = make_optimizer(model, recipe), share(recipe)
    small, large = (torch.zeros(n, device=x_BCHW.device) for n in (1, _LARGE_BYTES // 4))
    return in_turn({
        "forward": lambda: kept.update(loss=(model(x_BCHW) - y_BCHW).square().mean()),
        "backward": lambda: kept["loss"].backward(), "optimizer": lambda: (optimizer.step(), optimizer.zero_grad()),
        "small": lambda: dist.all_reduce(small), "large": lambda: dist.all_reduce(large),
    }, repeats)  # fmt: skip


def share(recipe: Recipe) -> tuple[Tensor, Tensor]:
    """This rank's part of a batch."""
    shape = (max(1, recipe.global_batch_size // dist.get_world_size()), recipe.n_channels, recipe.n_lat, recipe.n_lon)
    return torch.randn(shape, device=machine.device()), torch.randn(shape, device=machine.device())


def in_turn(actions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of actions in turn; all ranks begin each one together."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 2):
        for name, act in actions.items():
            dist.barrier()
            begun_s = time.perf_counter()
            act()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begun_s)
    # The first ones make the optimizer's averages, and torch's DDP its final buckets.
    return {name: samples_s[2:] for name, samples_s in times.items()}
