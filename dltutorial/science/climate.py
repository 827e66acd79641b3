"""Extreme weather as a segmentation: which grid points belong to a cyclone, and which to a front.

The fields are the course's simulated weather with noise on them. The labels come from the fields without noise, by
rules: a cyclone is where rotation is stronger than strain (Okubo 1970, Weiss 1991), and a front is where the tracer
changes fast. Both are rare, like the tropical cyclones and atmospheric rivers of DeepCAM (Kurth et al. 2018,
arXiv:1810.01993). The files have DeepCAM's layout (mlcommons/hpc), so DeepCAM's own files can take their place:

    <folder>/train/*.h5, validation/*.h5, test/*.h5     one file per sample: ``climate/data`` (H, W, C) float32,
                                                        ``climate/labels_0`` (H, W): 0 background, 1 and 2 events
    <folder>/stats.h5                                   ``climate/minval``, ``climate/maxval`` (C) of the training data

Legend: N samples, T snapshots, C channels, H rows × W columns, K classes.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dltutorial import paths
from dltutorial.config import Preset
from dltutorial.data import formats, weather, writing
from dltutorial.errors import DataError
from dltutorial.science.arrays import hdf5_files, read_arrays, write_arrays

CLASSES = ("background", "cyclone", "front")
FOLDERS = {"train": "train", "valid": "validation", "test": "test"}
# The share of DeepCAM's pixels that are background, tropical cyclones, atmospheric rivers (deepCam/train.py).
DEEPCAM_SHARES = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
NOISE = 0.1  # on the fields, in standard deviations
ROTATION_LIMIT = 3.0  # of a cyclone, in standard deviations
GRADIENT_LIMIT = 2.0  # of a front, in standard deviations above the mean


def ensure(preset: Preset) -> Path:
    """Return the folder of labelled weather for a preset, and build it if it does not exist."""
    source = weather.ensure(preset)
    folder = paths.data_dir() / source.name.replace("weather", "climate", 1)
    if not folder.exists():
        with writing.building(folder) as temporary:
            label_weather(source, temporary)
    return folder


def label_weather(source: Path, folder: Path) -> None:
    """Write each snapshot of a weather data set as a file with fields and labels, and then ``stats.h5``."""
    std_C11 = np.load(source / "stats" / "global_stds.npy")[0]
    lowest = []
    highest = []
    limits = None
    for split_number, (split, subfolder) in enumerate(FOLDERS.items()):
        (folder / subfolder).mkdir()
        for year_number, year in enumerate(hdf5_files(source / split)):
            with formats.open_hdf5(year) as h5:
                x_TCHW = h5["fields"][...]
            if limits is None:  # the first training year sets the limits for all years
                limits = label_limits(x_TCHW)
            label_THW = label(x_TCHW, *limits)
            generator = np.random.default_rng((split_number, year_number, 21))
            noise_TCHW = generator.standard_normal(x_TCHW.shape, np.float32)
            x_TCHW = x_TCHW + NOISE * std_C11 * noise_TCHW
            if split == "train":
                lowest.append(x_TCHW.min((0, 2, 3)))
                highest.append(x_TCHW.max((0, 2, 3)))
            for n, (x_CHW, label_HW) in enumerate(zip(x_TCHW, label_THW, strict=True)):
                sample = {
                    "climate/data": x_CHW.transpose(1, 2, 0).astype(np.float32),
                    "climate/labels_0": label_HW,
                }
                write_arrays(folder / subfolder / f"data-{year_number + 1:04d}-{n:03d}.h5", sample)
    stats = {
        "climate/minval": np.min(lowest, 0),
        "climate/maxval": np.max(highest, 0),
    }
    write_arrays(folder / "stats.h5", stats)


def label_limits(x_TCHW: np.ndarray) -> tuple[float, float]:
    """Return the limits of rotation and gradient that the labels of these and other fields use."""
    rotation_THW, gradient_THW = event_fields(x_TCHW)
    rotation_limit = -ROTATION_LIMIT * rotation_THW.std()
    gradient_limit = gradient_THW.mean() + GRADIENT_LIMIT * gradient_THW.std()
    return rotation_limit, gradient_limit


def label(x_TCHW: np.ndarray, rotation_limit: float, gradient_limit: float) -> np.ndarray:
    """Return the class of each point, (T, H, W) uint8. A point that is both is of the class cyclone."""
    rotation_THW, gradient_THW = event_fields(x_TCHW)
    label_THW = np.where(gradient_THW > gradient_limit, 2, 0)
    label_THW[rotation_THW < rotation_limit] = 1
    return label_THW.astype(np.uint8)


def event_fields(x_TCHW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the two quantities that the labels are rules of, from the first layer's fields without noise.

    Derivatives are differences over four grid lengths. The grid is periodic in both directions.

    Returns:
        Strain squared minus vorticity squared where the vorticity is that of cyclones, else 0, shape (T, H, W); and
        the norm of the tracer's gradient, shape (T, H, W).
    """
    fields_3THW = x_TCHW[:, [0, 1, 4]].swapaxes(0, 1).astype(np.float64)
    u_y, v_y, tracer_y = central_difference(fields_3THW, axis=2)
    u_x, v_x, tracer_x = central_difference(fields_3THW, axis=3)
    vorticity = v_x - u_y
    strain_squared = (u_x - v_y) ** 2 + (v_x + u_y) ** 2
    rotation = np.where(vorticity > 0, strain_squared - vorticity**2, 0.0)
    return rotation, np.hypot(tracer_x, tracer_y)


def central_difference(fields: np.ndarray, axis: int) -> np.ndarray:
    """Return the slope of the fields along an axis, over four grid lengths."""
    return (np.roll(fields, -2, axis) - np.roll(fields, 2, axis)) / 4


class Samples(Dataset):
    """The samples of one split in DeepCAM's layout.

    Attributes:
        files: The file of each sample.
        low_C: The least value of each channel.
        range_C: The greatest value of each channel minus its least value.
        shape: (C, H, W) of the first sample, which all others must have.
    """

    def __init__(self, folder: Path | str, split: str) -> None:
        """Find the files, and read the statistics and the first sample.

        Raises:
            DataError: The folder holds no files, or files of another layout.
        """
        self.files = hdf5_files(Path(folder) / FOLDERS[split])
        shapes = {"climate/minval": "C", "climate/maxval": "C"}
        low_C, high_C = read_arrays(Path(folder) / "stats.h5", shapes)
        self.low_C = torch.from_numpy(low_C)
        self.range_C = torch.from_numpy(high_C) - self.low_C
        self.size = "H W"
        self.shape = self[0][0].shape
        self.size = f"{self.shape[1]} {self.shape[2]}"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return fields (C, H, W), scaled to about -1/2 to 1/2, and labels (H, W).

        Raises:
            DataError: The file has another shape or NaN.
        """
        shapes = {
            "climate/data": f"{self.size} {len(self.low_C)}",
            "climate/labels_0": self.size,
        }
        x_HWC, label_HW = read_arrays(self.files[index], shapes)
        scaled_HWC = (torch.from_numpy(x_HWC) - self.low_C) / self.range_C - 0.5
        return scaled_HWC.permute(2, 0, 1).contiguous(), torch.from_numpy(label_HW).long()

    def class_shares(self) -> Tensor:
        """Return the share of each class among the pixels of about 1,000 samples, (K,) float64.

        Raises:
            DataError: A class does not occur, so that its share would give an infinite weight.
        """
        counts_K = torch.zeros(len(CLASSES), dtype=torch.float64)
        step = max(1, len(self) // 1000)
        for index in range(0, len(self), step):
            counts_K += torch.bincount(self[index][1].flatten(), minlength=len(CLASSES))
        if not counts_K.all():
            name = CLASSES[int(counts_K.argmin())]
            raise DataError(f"{self.files[0].parent}: no pixel is of the class {name}; add samples")
        return counts_K / counts_K.sum()
