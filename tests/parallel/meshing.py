"""What the ranks of a mesh do in the tests."""

import dataclasses
import resource
import signal
from pathlib import Path

import mates
import torch.distributed as dist

from dltutorial.engine.forecasting import make_task
from dltutorial.engine.loop import TrainState, loop

MESH = dataclasses.replace(
    mates.SMALL, dim=32, heads=4, depth=2, optimizer="sgd", learning_rate=0.3, clip_norm=0.05, weight_decay=0.1,
    global_batch_size=8, predict_change=False, steps=6, log_every=1, eval_every=3, warmup_steps=1,
)  # fmt: skip


def trained(data, variants):
    """For each set of knobs: losses and scores, and the whole weights in the end."""
    mates.use_one_thread()
    found = []
    for knobs in variants:
        recipe = dataclasses.replace(MESH, **knobs)
        state = TrainState(task := make_task(recipe, Path(data)), recipe)
        records = list(loop(task, recipe, state))
        assert all(round(r.samples_per_s * r.step_s, 6) == recipe.global_batch_size for r in records)
        seen = [(record.loss, *record.scores.values()) for record in records]
        found.append((seen, {name: x.detach().clone() for name, x in state.mesh.weights().items()}))
    return found


def held(data, knobs):
    """Numbers that this rank holds: weights behind the forward pass and behind the update, gradients, averages."""
    mates.use_one_thread()
    recipe = dataclasses.replace(MESH, optimizer="adamw", **knobs)
    task = make_task(recipe, Path(data))
    numbers = {}

    def local(x):
        return x.to_local() if hasattr(x, "to_local") else x

    def weights():
        return sum(local(p).numel() for p in task.model.parameters())

    def loss(model, *batch):
        value = task.loss(model, *batch)
        numbers["forward"] = weights()
        return value

    state = TrainState(dataclasses.replace(task, loss=loss), recipe)
    state.update(*next(iter(task.data(0))))
    kept = getattr(state.optimizer, "optim", state.optimizer).state.values()
    numbers["weights"] = weights()
    numbers["gradients"] = sum(local(p.grad).numel() for p in task.model.parameters())
    numbers["averages"] = sum(local(x).numel() for words in kept for x in words.values() if x.ndim)
    return numbers


def trained_on(data, folder, knobs, **how):
    """A run in a folder, or the rest of it; see ``mates.train``."""
    return mates.train(data, folder, dataclasses.replace(MESH, **ADAM, **knobs), **how)


ADAM = {"optimizer": "adamw", "learning_rate": 3e-3, "steps": 14}


def trained_without_room(data, folder, knobs):
    """Rank 1 cannot write a file of more than a few bytes."""
    if dist.get_rank() == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return trained_on(data, folder, knobs)
