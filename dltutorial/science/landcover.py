"""Land cover: which of 19 classes a multispectral tile holds. A tile has several classes, and some classes are rare.

In the simulation smooth random fields compete for each pixel. A class with a large handicap is rare. Each class has a
spectrum and a roughness, and each tile has a brightness and noise. A class with at least 5% of the pixels is a label.
Bands, unit (reflectance × 10,000) and classes are those of BigEarthNet v2 with Sentinel-2 (Clasen et al. 2024,
arXiv:2407.03653). Its tiles of 120 × 120 pixels come as GeoTIFFs. Convert them to one HDF5 file for each split:

    <folder>/train.h5, validation.h5, test.h5      ``images`` (N, 12, H, W) uint16, ``labels`` (N, 19) uint8, 0 or 1

Legend: N tiles, C bands, H × W pixels, K classes.
"""

from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from dltutorial import paths
from dltutorial.config import Preset
from dltutorial.data import formats, writing
from dltutorial.science.arrays import find_array, read_arrays

CLASSES = (
    "urban fabric",
    "industrial or commercial",
    "arable land",
    "permanent crops",
    "pastures",
    "complex cultivation",
    "agriculture with nature",
    "agro-forestry",
    "broad-leaved forest",
    "coniferous forest",
    "mixed forest",
    "natural grassland",
    "moors and heath",
    "transitional woodland",
    "beaches, dunes, sands",
    "inland wetlands",
    "coastal wetlands",
    "inland waters",
    "marine waters",
)
N_BANDS = 12  # B01 to B12 without B10
FILES = {"train": "train.h5", "valid": "validation.h5", "test": "test.h5"}
# The number of tiles to train with, and the number of pixels along an edge.
SIZES = {
    "smoke": (3000, 24),
    "laptop": (12_000, 24),
    "gpu": (60_000, 120),
    "cluster": (60_000, 120),
}
LOOK_SEED = 21  # of the spectra, which are the same in all data sets
NOISE = 0.3  # in standard deviations of a band


def ensure(preset: Preset) -> Path:
    """Return the folder of simulated tiles for a preset, and build it if it does not exist."""
    n_train, size = SIZES[preset.name]
    folder = paths.data_dir() / f"landcover-{n_train}-{size}"
    if not folder.exists():
        with writing.building(folder) as temporary:
            for number, name in enumerate(FILES.values()):
                n_tiles = n_train if name == "train.h5" else n_train // 4
                write_tiles(temporary / name, n_tiles, size, number)
    return folder


def write_tiles(file: Path, n_tiles: int, size: int, number: int) -> None:
    """Simulate the tiles of a split, 250 at a time, and write them."""
    shape = (n_tiles, N_BANDS, size, size)
    with h5py.File(file, "w", locking=False) as h5:
        images = h5.create_dataset("images", shape, np.uint16, chunks=(1, *shape[1:]))
        labels = h5.create_dataset("labels", (n_tiles, len(CLASSES)), np.uint8)
        for first in range(0, n_tiles, 250):
            last = min(n_tiles, first + 250)
            seed = (number << 32) + first
            images[first:last], labels[first:last] = simulate(last - first, size, seed)


def simulate(n_tiles: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Simulate tiles (N, 12, size, size) and labels (N, 19). The classes have the same spectra for every seed."""
    K = len(CLASSES)
    look = torch.Generator().manual_seed(LOOK_SEED)
    steps_KC = torch.randn(K, N_BANDS, generator=look)
    spectra_KC = steps_KC.cumsum(1) * 1.5 / N_BANDS**0.5  # neighbouring bands are similar
    roughness_K = 0.1 + 0.5 * torch.rand(K, generator=look)
    order_K = torch.randperm(K, generator=look)
    handicap_K = torch.linspace(0, 2.6, K)[order_K]

    generator = torch.Generator().manual_seed(seed)
    coarse_NK44 = torch.randn(n_tiles, K, 4, 4, generator=generator)
    terrain_NKHW = F.interpolate(coarse_NK44, size=(size, size), mode="bicubic")
    terrain_NKHW -= handicap_K[:, None, None]
    terrain_NKHW += 1.2 * torch.randn(n_tiles, K, 1, 1, generator=generator)  # a region has some classes only
    cover_NHW = terrain_NKHW.argmax(1)
    share_NK = F.one_hot(cover_NHW, K).float().mean((1, 2))

    texture_NHW = roughness_K[cover_NHW] * torch.randn(n_tiles, size, size, generator=generator)
    brightness_N = 1 + 0.2 * torch.randn(n_tiles, 1, 1, generator=generator)
    x_NHWC = spectra_KC[cover_NHW] * brightness_N[..., None]
    x_NHWC = x_NHWC + texture_NHW[..., None]
    x_NCHW = x_NHWC.permute(0, 3, 1, 2)
    noise_NCHW = torch.randn(n_tiles, N_BANDS, size, size, generator=generator)
    x_NCHW = x_NCHW + NOISE * noise_NCHW
    reflectance_NCHW = (2000 + 500 * x_NCHW).clamp(1, 10_000).round()
    labels_NK = share_NK >= 0.05
    return reflectance_NCHW.numpy().astype(np.uint16), labels_NK.numpy().astype(np.uint8)


class Tiles(Dataset):
    """The tiles of one split.

    Attributes:
        shape: (N, C, H, W) of the images.
        labels_NK: The labels, float32, 0 or 1.
    """

    def __init__(self, folder: Path | str, split: str) -> None:
        """Open the file and read the labels.

        Raises:
            DataError: The file is missing or has another layout.
        """
        self.file = Path(folder) / FILES[split]
        (labels_NK,) = read_arrays(self.file, {"labels": f"N {len(CLASSES)}"})
        self.labels_NK = torch.from_numpy(labels_NK)
        with formats.open_hdf5(self.file) as h5:
            images = find_array(self.file, h5, "images", f"{len(labels_NK)} C H W", {})
            self.shape = images.shape

    def __len__(self) -> int:
        """Return the number of tiles."""
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> tuple[Tensor, Tensor]:
        """Return one tile (C, H, W) and its labels (K,), or several of each. The values are scaled to about 0 ± 1."""
        with formats.open_hdf5(self.file) as h5:
            reflectance = h5["images"][index].astype(np.float32)
        return (torch.from_numpy(reflectance) - 2000) / 500, self.labels_NK[index]
