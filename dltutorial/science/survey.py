"""A sky survey: images of galaxies, some of which are strong lenses.

The images are simulated by ``data.lenses``. The files have the layout of Stein et al. 2021
(georgestein/ssl-legacysurvey) and, beside the images, labels:

    <folder>/train.h5, valid.h5      ``images`` (N, C, H, W) float32, ``labels`` (N,) 1 for a strong lens, else 0

Legend: N images, C channels, H × W pixels.
"""

from pathlib import Path

import torch
from torch import Tensor

from dltutorial import paths
from dltutorial.config import Preset
from dltutorial.data import lenses, writing
from dltutorial.science.arrays import read_arrays, write_arrays

N_VALID = 2000
# The number of images to train with, and the number of pixels along an edge.
SIZES = {
    "smoke": (8000, 16),
    "laptop": (24_000, 32),
    "gpu": (200_000, 64),
    "cluster": (500_000, 64),
}


def ensure(preset: Preset, progress: bool = True) -> Path:
    """Return the folder of simulated images for a preset, and build it if it does not exist."""
    n_train, size = SIZES[preset.name]
    folder = paths.data_dir() / f"survey-{n_train}-{size}"
    if not folder.exists():
        with writing.building(folder) as temporary:
            images_NHW, labels_N = lenses.simulate(
                n_train + N_VALID,
                size,
                seed=0,
                device="cpu",
                progress=progress,
            )
            images_NCHW = images_NHW[:, None]
            train = {"images": images_NCHW[:n_train], "labels": labels_N[:n_train]}
            valid = {"images": images_NCHW[n_train:], "labels": labels_N[n_train:]}
            write_arrays(temporary / "train.h5", train)
            write_arrays(temporary / "valid.h5", valid)
    return folder


def read(file: Path) -> tuple[Tensor, Tensor]:
    """Read images (N, C, H, W) and labels (N,).

    Raises:
        DataError: The file has another layout or NaN.
    """
    images_NCHW, labels_N = read_arrays(file, {"images": "N C H W", "labels": "N"})
    return torch.from_numpy(images_NCHW), torch.from_numpy(labels_N).long()
