"""What ranks of the science cases surrogate and pinn do in the tests. A file of its own: a rank imports this alone."""

from pathlib import Path

import torch

from dltutorial import machine
from dltutorial.config import PRESETS
from dltutorial.engine import run
from dltutorial.science import cases

SMALL = {"steps": 6, "eval_every": 3, "log_every": 1, "global_batch_size": 12, "device": "cpu", "track": (), "dim": 8}


def train(name, data, folder, **knobs):
    """(step, loss, scores) of a short run."""
    machine.use_cores = lambda n=None: torch.set_num_threads(1) or 1
    torch.set_num_threads(1)
    case = cases.case(name)
    recipe = case.make_recipe(PRESETS["smoke"], {"task": name, "samples": 40, **SMALL, **knobs}, Path(data))
    task = case.make_task(recipe, Path(data))
    return [(seen.step, seen.loss, seen.scores) for seen in run.train(task, recipe, Path(folder), progress=False)]


def train_both(data, folder, **knobs):
    """Of both cases, by name; ``data`` and ``folder`` hold one folder for each."""
    return {name: train(name, f"{data}/{name}", f"{folder}/{name}", **knobs) for name in ("surrogate", "pinn")}
