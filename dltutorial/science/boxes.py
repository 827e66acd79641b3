"""The files of the case cosmology, in CosmoFlow's layout (mlcommons/hpc, cosmoflow), cut to 128 cells along an edge.

    <folder>/train/*.h5, valid/*.h5     one box per file: ``full`` (side, side, side, 4) int16, the particles in each
                                        cell at four redshifts; ``unitPar`` (4,), the parameters, each from -1 to 1

Legend: B boxes, C redshifts, D × H × W cells of a box, P parameters.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dltutorial import paths
from dltutorial.config import Preset
from dltutorial.data import writing
from dltutorial.science.arrays import hdf5_files, read_arrays, write_arrays
from dltutorial.science.cosmology import PARAMETERS, SCALE_FACTORS, simulate

# The number of boxes to train with, and the number of cells along an edge.
SIZES = {
    "smoke": (1000, 16),
    "laptop": (4000, 32),
    "gpu": (512, 128),
    "cluster": (2048, 128),
}
CELLS_AT_ONCE = 2**22


def ensure(preset: Preset) -> Path:
    """Return the folder of simulated boxes for a preset, and build it if it does not exist."""
    n_train, side = SIZES[preset.name]
    folder = paths.data_dir() / f"cosmology-{n_train}-{side}"
    if not folder.exists():
        with writing.building(folder) as temporary:
            write_boxes(temporary / "train", n_train, side, seed=0)
            write_boxes(temporary / "valid", n_train // 4, side, seed=10**5)
    return folder


def write_boxes(folder: Path, n: int, side: int, seed: int) -> None:
    """Simulate boxes and write each to a file."""
    folder.mkdir()
    at_once = max(1, CELLS_AT_ONCE // side**3)
    for first in range(0, n, at_once):
        x_BCDHW, unit_BP = simulate(min(at_once, n - first), side, seed + first)
        for number, (x_CDHW, unit_P) in enumerate(zip(x_BCDHW, unit_BP, strict=True), first):
            counts_DHWC = x_CDHW.movedim(0, 3).numpy().astype(np.int16)
            write_arrays(folder / f"box_{number:06}.h5", {"full": counts_DHWC, "unitPar": unit_P})


class Boxes(Dataset):
    """The boxes of one split.

    Attributes:
        files: The file of each box.
    """

    def __init__(self, folder: Path | str, split: str) -> None:
        """Find the files and read the first box.

        Raises:
            DataError: The folder holds no files, or files of another layout.
        """
        self.files = hdf5_files(Path(folder) / split)
        self.shape = f"S S S {len(SCALE_FACTORS)}"
        side = self[0][0].shape[1]
        self.shape = f"{side} {side} {side} {len(SCALE_FACTORS)}"

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a box (C, D, H, W), log(1 + count), and its parameters (P,), from -1 to 1.

        Raises:
            DataError: The file has another shape or NaN.
        """
        shapes = {"full": self.shape, "unitPar": str(len(PARAMETERS))}
        counts_DHWC, unit_P = read_arrays(self.files[index], shapes)
        x_DHWC = torch.from_numpy(np.log1p(counts_DHWC))
        return x_DHWC.movedim(3, 0), torch.from_numpy(unit_P)


def normalise(x: Tensor) -> Tensor:
    """Scale log(1 + count), so that the mean is about 0 and the standard deviation about 1."""
    return (x - 1.2) / 0.9
