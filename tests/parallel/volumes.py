"""What ranks do in the tests of chapter 22's cases."""

from pathlib import Path

import mates
import torch
import torch.distributed as dist

from dltutorial.engine.loop import TrainState, loop
from dltutorial.science import cases, cosmology


def trained(folder, recipes):
    """Of each recipe: losses, scores, weights in the end."""
    mates.use_one_thread()
    found = []
    for recipe in recipes:
        task = cases.case(recipe.task).make_task(recipe, Path(folder))
        state = TrainState(task, recipe)
        seen = [(record.loss, *record.scores.values()) for record in loop(task, recipe, state)]
        found.append((seen, {name: x.detach().clone() for name, x in state.mesh.weights().items()}))
    return found


def slabs(kind):
    """What a network on slabs computes, and the mean over ranks of its weights' gradients."""
    mates.use_one_thread()
    torch.manual_seed(0)
    model, x_BCDHW = cosmology.CosmoNet(16, 4, 2, kind).double(), torch.rand(2, 4, 16, 16, 16).double()
    if dist.get_world_size() > 1:
        model.cut_space(dist.group.WORLD)
    y_BP = model(x_BCDHW)
    y_BP.square().sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    return y_BP.detach(), [p.grad for p in model.parameters()]
