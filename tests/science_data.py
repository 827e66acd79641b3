"""A few samples for every case of science, written in seconds, in the layout that ``--data DIR`` takes."""

import h5py
import numpy as np
import torch

from dltutorial.science import cases, climate, cosmology, landcover, pinn, surrogate


def write(task, folder):
    """A folder of 16 to 40 samples a split."""
    folder.mkdir(parents=True)
    _WRITE[task](folder)
    return folder


def _climate(folder):
    draw = np.random.default_rng(0)
    for split in climate.SPLITS.values():
        (folder / split).mkdir()
        for index in range(16):
            label_HW = draw.integers(0, 3, (16, 16)).astype(np.uint8)
            with h5py.File(folder / split / f"data-{index:03d}.h5", "w") as h5:
                h5["climate/data"] = draw.standard_normal((16, 16, 5)).astype(np.float32) + label_HW[..., None]
                h5["climate/labels_0"] = label_HW
    with h5py.File(folder / "stats.h5", "w") as h5:
        h5["climate/minval"], h5["climate/maxval"] = np.full(5, -4.0), np.full(5, 6.0)


def _landcover(folder):
    for number, split in enumerate(landcover.SPLITS.values()):
        images, labels = landcover.simulate(40, 8, seed=number)
        labels[0] = 1
        with h5py.File(folder / f"{split}.h5", "w") as h5:
            h5["images"], h5["labels"] = images.astype(np.float32), labels


def _cosmology(folder):
    x_BCDHW, unit_BP = cosmology.simulate(20, 16)
    for name, part in (("train", slice(16)), ("valid", slice(16, 20))):
        for n, (x_CDHW, unit_P) in enumerate(zip(x_BCDHW[part], unit_BP[part], strict=True)):
            cosmology.write(folder / name / f"box_{n:02}.h5", x_CDHW, unit_P)


def _survey(folder):
    draw = torch.Generator().manual_seed(0)
    for name in ("train", "valid"):
        with h5py.File(folder / f"{name}.h5", "w") as h5:
            h5["images"], h5["labels"] = torch.randn(40, 1, 16, 16, generator=draw).numpy(), np.arange(40) % 2


_WRITE = {
    "climate": _climate,
    "landcover": _landcover,
    "cosmology": _cosmology,
    "survey": _survey,
    "surrogate": lambda folder: surrogate._make(cases.Simulated(40, 20), folder),
    "pinn": lambda folder: pinn._make(cases.Simulated(40, 20, kind="watched"), folder),
}
TASKS = tuple(_WRITE)
