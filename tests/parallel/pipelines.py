"""What the ranks of ``test_pipeline.py`` do."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dltutorial.parallel import pipeline, schedules

ORDERS = {
    "gpipe": (schedules.gpipe, 1),
    "1f1b": (schedules.one_f_one_b, 1),
    "interleaved": (schedules.interleaved, 2),
    "zero bubble": (schedules.zero_bubble, 1),
}
D, B, M = 6, 16, 8


def layers():
    torch.manual_seed(0)
    return [nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D)) for _ in range(8)]


def batch():
    return torch.randn(2, B, D, generator=torch.Generator().manual_seed(1))


def flat(modules):
    return torch.cat([w.detach().flatten() for module in modules for w in module.parameters()])


def alone(n_steps=3):
    """Weights before and after some updates of one process."""
    model, (x, y) = nn.Sequential(*layers()), batch()
    start, optimizer = flat([model]), torch.optim.SGD(model.parameters(), 0.5, 0.9)
    for _ in range(n_steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return start, flat([model])


def updates(name, groups=1):
    """This rank's weights after the same updates, by stage, its losses, and the most parts it held."""
    mesh = init_device_mesh("cpu", (groups, dist.get_world_size() // groups), mesh_dim_names=("data", "line"))
    line = mesh.get_group("line")
    p, me, group = dist.get_world_size(line), dist.get_rank(line), mesh.get_local_rank("data")
    order, v = ORDERS[name]
    n, m = p * v, M // groups
    stages = {s: nn.Sequential(*layers()[s * 8 // n : (s + 1) * 8 // n]) for s in range(me, n, p)}
    if name == "zero bubble":
        stages = {s: pipeline.postponed(stage) for s, stage in stages.items()}
    x, y = (t.chunk(groups)[group].chunk(m) for t in batch())
    weights = [w for stage in stages.values() for w in stage.parameters()]
    optimizer = torch.optim.SGD(weights, 0.5, 0.9)

    def loss(out, part):
        return (out - y[part]).square().mean() / m

    for _ in range(3):
        optimizer.zero_grad()
        done = pipeline.run(order(p, m)[me], stages, n, x[0].shape, x, loss, group=line)
        for weight in weights if groups > 1 else ():
            dist.all_reduce(weight.grad, group=mesh.get_group("data"))
            weight.grad /= groups
        optimizer.step()
    return {s: flat([stage]) for s, stage in stages.items()}, done.losses, done.held


def without_postponing():
    order = schedules.zero_bubble(2, 2)[dist.get_rank()]
    pipeline.run(order, {dist.get_rank(): layers()[0]}, 2, (8, D), batch()[0].chunk(2), lambda y, part: y.sum())


def dies_on_the_way():
    """Rank 1 has received one part and is gone; rank 0 waits for what should come back."""
    me, calls = dist.get_rank(), []

    def loss(out, part):
        calls.append(part)
        if len(calls) == 2:
            raise OSError("gone")
        return out.sum()

    pipeline.run(schedules.one_f_one_b(2, 4)[me], {me: layers()[me]}, 2, (4, D), batch()[0].chunk(4), loss)


def misled():
    order = [schedules.Act(kind, part, 0) for part in range(4) for kind in "FB"]
    me = dist.get_rank()
    order = schedules.gpipe(2, 4)[1] if me else order
    pipeline.run(order, {me: layers()[me]}, 2, (4, D), batch()[0].chunk(4), lambda y, part: y.sum())
