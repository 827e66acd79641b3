"""What ranks do in the tests of climate and land cover. A file of its own, so that a rank imports nothing but this."""

from pathlib import Path

import h5py
import numpy as np
import torch

from dltutorial import config, machine
from dltutorial.engine import run
from dltutorial.science import cases, climate, landcover

VARIANTS = ({}, {"accumulate": 2})


def write_climate(folder):
    """Sixteen tiny samples a split, in DeepCAM's layout; the rare classes are in some only."""
    draw = np.random.default_rng(0)
    for split in climate.SPLITS.values():
        (folder / split).mkdir(parents=True)
        for index in range(16):
            label_HW = np.zeros((16, 16), np.uint8)
            label_HW[:4, : 2 * (index % 3)], label_HW[8:10, : index % 5] = 1, 2
            with h5py.File(folder / split / f"data-{index:03d}.h5", "w") as h5:
                h5["climate/data"] = draw.standard_normal((16, 16, 5)).astype(np.float32) + label_HW[..., None]
                h5["climate/labels_0"] = label_HW
    with h5py.File(folder / "stats.h5", "w") as h5:
        h5["climate/minval"], h5["climate/maxval"] = np.full(5, -4.0), np.full(5, 6.0)
    return folder


def write_landcover(folder):
    """Forty tiny tiles a split."""
    folder.mkdir(parents=True)
    for number, split in enumerate(landcover.SPLITS.values()):
        images, labels = landcover.simulate(40, 8, seed=number)
        labels[0] = 1
        with h5py.File(folder / f"{split}.h5", "w") as h5:
            h5["images"], h5["labels"] = images, labels
    return folder


def train(folders, runs):
    """Losses and last scores of each case's short runs, by SGD, which hides no factor."""
    machine.use_cores = lambda n=None: torch.set_num_threads(1) or 1
    torch.set_num_threads(1)
    found = {}
    for name, folder in folders.items():
        for number, variant in enumerate(VARIANTS):
            knobs = {"task": name, "optimizer": "sgd", "learning_rate": 0.05, "steps": 4, "global_batch_size": 8}
            knobs |= {"log_every": 1, "eval_every": 0, "device": "cpu", "track": (), **variant}
            recipe = cases.case(name).make_recipe(config.preset("smoke"), knobs, Path(folder))
            task = cases.case(name).make_task(recipe, Path(folder))
            seen = list(run.train(task, recipe, Path(runs) / f"{name}-{number}", progress=False))
            found[name, number] = [one.loss for one in seen], dict(seen[-1].scores)
    return found
