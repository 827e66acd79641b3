"""The functions that the ranks of ``test_pipeline.py`` run."""

import torch
import torch.distributed as dist
from torch import nn

from dltutorial.parallel import pipeline_parallel, pipeline_schedules
from dltutorial.parallel.postponed_gradients import postpone_weight_gradients

SCHEDULES = {
    "gpipe": (pipeline_schedules.gpipe, 1),
    "1f1b": (pipeline_schedules.one_f_one_b, 1),
    "interleaved": (pipeline_schedules.interleaved, 2),
    "zero bubble": (pipeline_schedules.zero_bubble, 1),
}
D, B, M = 6, 16, 8


def layers():
    torch.manual_seed(0)
    return [nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D)) for _ in range(8)]


def batch():
    return torch.randn(2, B, D, generator=torch.Generator().manual_seed(1))


def flat(modules):
    return torch.cat([w.detach().flatten() for module in modules for w in module.parameters()])


def one_process(n_steps=3):
    """Return the weights before and after some updates of one process."""
    model, (x, y) = nn.Sequential(*layers()), batch()
    start, optimizer = flat([model]), torch.optim.SGD(model.parameters(), 0.5, 0.9)
    for _ in range(n_steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return start, flat([model])


def updates(name):
    """Return this rank's weights after the same updates by stage, its losses, and its activations in flight."""
    p, rank = dist.get_world_size(), dist.get_rank()
    schedule, v = SCHEDULES[name]
    n = p * v
    stages = {s: nn.Sequential(*layers()[s * 8 // n : (s + 1) * 8 // n]) for s in range(rank, n, p)}
    if name == "zero bubble":
        stages = {s: postpone_weight_gradients(stage) for s, stage in stages.items()}
    x, y = (t.chunk(M) for t in batch())
    optimizer = torch.optim.SGD([w for stage in stages.values() for w in stage.parameters()], 0.5, 0.9)

    def loss_fn(output, micro_batch):
        return (output - y[micro_batch]).square().mean() / M

    inputs = x if 0 in stages else ()  # only the rank with stage 0 reads them
    for _ in range(3):
        optimizer.zero_grad()
        result = pipeline_parallel.run_schedule(schedule(p, M)[rank], stages, n, x[0].shape, inputs, loss_fn)
        optimizer.step()
    return {s: flat([stage]) for s, stage in stages.items()}, result.losses, result.max_in_flight


class CountedWork:
    """The ``Work`` of a send, which counts the calls of ``wait``."""

    n_waits = 0

    def __init__(self, work):
        self.work = work

    def wait(self):
        CountedWork.n_waits += 1
        return self.work.wait()


def numbers_of_sends_and_waits(name, m):
    """Return how many sends this rank started in a step, and for how many it waited."""
    p, rank = dist.get_world_size(), dist.get_rank()
    stage = nn.Sequential(*layers()[rank * 8 // p : (rank + 1) * 8 // p])
    x = torch.randn(m, 2, D).unbind()
    original, sends = dist.isend, []

    def counted(*args, **options):
        sends.append(CountedWork(original(*args, **options)))
        return sends[-1]

    dist.isend = counted
    try:
        actions = SCHEDULES[name][0](p, m)[rank]
        pipeline_parallel.run_schedule(actions, {rank: stage}, p, x[0].shape, x, lambda y, i: y.sum())
    finally:
        dist.isend = original
    return len(sends), CountedWork.n_waits
