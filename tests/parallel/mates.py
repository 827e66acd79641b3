"""What the ranks of a team do in the tests. A file of its own, so that a rank imports nothing but this."""

import dataclasses
from pathlib import Path

import torch
import torch.distributed as dist

from dltutorial import machine
from dltutorial.config import PRESETS
from dltutorial.engine import distributed, run
from dltutorial.engine.forecasting import make_task
from dltutorial.engine.recipe import Recipe
from dltutorial.errors import Interrupted

SMALL = dataclasses.replace(
    Recipe.of(PRESETS["smoke"], steps=12, eval_every=4),
    n_channels=3, n_lat=16, n_lon=24, dim=16, depth=1, heads=2, global_batch_size=12, log_every=3, roll=True,
    device="cpu", track=(),
)  # fmt: skip


def use_one_thread():
    """In this process, alone or among ranks."""
    machine.use_cores = lambda n=None: torch.set_num_threads(1) or 1
    torch.set_num_threads(1)


def train(data, folder, recipe=SMALL, end_at=None, ends=0, **options):
    """Losses and the update at which it ended; rank ``ends`` is asked to end after ``end_at`` updates."""
    use_one_thread()
    seen, made = [], 0

    def asked_to_end():
        nonlocal made
        made += 1
        return made == end_at and distributed.rank() == ends

    try:
        task = make_task(recipe, Path(data))
        for record in run.train(task, recipe, Path(folder), progress=False, asked_to_end=asked_to_end, **options):
            seen.append((record.step, record.loss, record.scores))
    except Interrupted as ending:
        return seen, str(ending)
    return seen, "finished"


def train_all(data, folder, variants):
    """One run for each set of changed knobs."""
    runs = [dataclasses.replace(SMALL, **knobs) for knobs in variants]
    return [train(data, f"{folder}-{number}", recipe) for number, recipe in enumerate(runs)]


def agreements():
    rank, asked = distributed.rank(), []
    stop = distributed.StopFlag(lambda: asked[-1])
    heard = [stop() for flag in (False, rank == 1, False, rank == 0, False, False) if asked.append(flag) is None]
    uneven = torch.tensor([0.1, 1e8, 3.0]) * (1 + rank)
    mean = distributed.mean_over_ranks(uneven)
    distributed.barrier()
    return {
        "stop": heard,
        "broadcast": distributed.broadcast_object({"from": rank}),
        "gather": distributed.gather_objects(f"rank {rank}"),
        "mean": mean,
        "sum": distributed.sum_over_ranks(torch.tensor([1.0, 2.0])),
    }


def all_or_none(fail):
    """What each rank hears when those of ``fail`` fail inside."""
    rank = distributed.rank()
    try:
        with distributed.all_or_none():
            if rank in fail:
                raise ValueError(f"no {rank}")
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def differing(data, folder):
    return train(data, folder, dataclasses.replace(SMALL, seed=dist.get_rank()))
