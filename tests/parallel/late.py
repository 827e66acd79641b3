"""What ranks do in the tests of gradient lag. A file of its own, so that a rank imports nothing but this."""

import mates
import torch

from dltutorial.engine.distributed import rank, world_size
from dltutorial.engine.loop import loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task

N, RATE = 6, 0.05


def batches(n=N):
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(12, 5, generator=draw) for _ in range(n)]


def loss(model, x):
    return model(x).square().mean()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_hand(lag, momentum=0.0, clip=0.0):
    """SGD in one process; with lag 1 an update takes the gradient of the step before, the first one nothing."""
    torch.set_num_threads(1)
    model = mates.Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    late = velocity = [torch.zeros_like(p) for p in trained]
    for x in batches():
        now = torch.autograd.grad(loss(model, x), trained)
        taken, late = (late, now) if lag else (now, now)
        norm = torch.cat([g.flatten() for g in taken]).norm()
        taken = [g * min(1.0, clip / (norm.item() + 1e-6)) for g in taken] if clip else taken
        velocity = [momentum * v + g for v, g in zip(velocity, taken, strict=True)]
        for p, v in zip(trained, velocity, strict=True):
            p.data -= RATE * v
    return weights(model)


def trained(**knobs):
    """The loop's weights after some updates of this rank's parts of the batches; ranks begin with other weights."""
    torch.set_num_threads(1)
    model = mates.Net()
    for p in model.parameters():
        p.data += rank()
    plain = {"optimizer": "sgd", "learning_rate": RATE, "beta1": 0.0, "weight_decay": 0.0, "clip_norm": 0.0}
    fixed = {"warmup_steps": 0, "final_rate_ratio": 1.0, "steps": N, "device": "cpu", "eval_every": 0}
    recipe = Recipe(**plain | fixed | knobs)
    mine = [(x[rank() :: world_size()],) for x in batches()]
    list(loop(Task(model, lambda skip: iter(mine[skip:]), loss), recipe))
    return weights(model)
