"""Small data sets for studies that train hundreds of networks: simulated lenses, and digits that people wrote.

In: a seed and sizes. Out: a frozen ``Survey``: flat float32 features with mean 0 and deviation 1 over the training
part, and labels, split into three parts that share no image. Simulated lenses are kept on the disk, so that the next
notebook has them at once.

Legend: N images, H rows, W columns, F features of one image.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dltutorial import node, paths
from dltutorial.data import formats, writing
from dltutorial.data import lenses as simulated
from dltutorial.errors import DataError, RecipeError

_LAYOUT = 1  # of the files; raise it when the simulation or the features change


@dataclass(frozen=True)
class Survey:
    """A classification data set, on the CPU.

    Attributes:
        name: for titles.
        n_classes: labels are 0 … n_classes - 1.
        x_train, x_valid, x_test: features (N, F), float32.
        y_train, y_valid, y_test: labels (N,), int64.
    """

    name: str
    n_classes: int
    x_train: Tensor
    y_train: Tensor
    x_valid: Tensor
    y_valid: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def n_features(self) -> int:
        """F."""
        return self.x_train.shape[1]

    def __len__(self) -> int:
        """Training images."""
        return len(self.x_train)


def lenses(seed: int = 0, train: int = 20_000, valid: int = 2_000, test: int = 2_000, progress: bool = True) -> Survey:
    """Is there a strong lens in the image? 256 features: 32 × 32 images, averaged over squares of 2 × 2 pixels.

    Simulated when first asked for (seconds), then read from the data folder.

    Raises:
        RecipeError: a part without images.
        CourseError: they have to be simulated, and this is a login node.
    """
    counts = (train, valid, test)
    if min(counts) < 1:
        raise RecipeError(f"a survey of {train}, {valid} and {test} images cannot be split; each part needs at least 1")
    file, n = cache_file(seed, counts), sum(counts)
    if file.exists():
        try:
            return _split("simulated lenses", *_read(file, n), counts)
        except DataError as error:
            print(f"{error}; simulating it again", file=sys.stderr)
    node.refuse_on_login("simulating lenses")
    images_NHW, y_N = simulated.simulate(n, seed=seed, progress=progress)
    x_NF = pooled(images_NHW)
    try:
        with writing.refusals(file), paths.atomic(file) as temporary, open(temporary, "wb") as out:
            np.savez(out, features=x_NF.numpy(), labels=y_N.numpy())
    except DataError as error:  # a disk that is full costs time only
        print(f"the lenses are not kept for the next time: {error}", file=sys.stderr)
    return _split("simulated lenses", x_NF, y_N, counts)


def digits(seed: int = 0) -> Survey:
    """Which digit did somebody write? 1797 real images of 8 × 8 pixels, 64 features, 10 classes.

    From scikit-learn, which has the test part of the UCI set "Optical Recognition of Handwritten Digits"
    (Alpaydin and Kaynak 1998). No download. The seed tells which images come into which part: 400 each to validate
    and to test, the others to train.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    n = len(found.target)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    x_NF, y_N = torch.from_numpy(found.data).float()[order], torch.from_numpy(found.target).long()[order]
    return _split("handwritten digits", x_NF, y_N, (n - 800, 400, 400))


def cache_file(seed: int, counts: tuple[int, int, int]) -> Path:
    """Where the lenses of a seed are kept; the sum of the parts is what was simulated."""
    return paths.data_dir() / "surveys" / f"lenses-v{_LAYOUT}-seed{seed}-{sum(counts)}.npz"


def pooled(images_NHW: Tensor) -> Tensor:
    """Features (N, H W / 4): means over squares of 2 × 2 pixels."""
    return functional.avg_pool2d(images_NHW[:, None], 2).flatten(1)


def _read(file: Path, n: int) -> tuple[Tensor, Tensor]:
    """Features (N, F) and labels (N,) that ``lenses`` kept."""
    with formats.blaming(file), open(file, "rb") as stream, np.load(stream, allow_pickle=False) as found:
        x_NF, y_N = found["features"], found["labels"]
    fits = (x_NF.dtype, x_NF.shape[:-1], y_N.shape, y_N.dtype.kind) == (np.float32, (n,), (n,), "i")
    if not fits or not np.isfinite(x_NF).all() or y_N.min() < 0:
        raise DataError(f"{file} does not hold {n} images with labels")
    return torch.from_numpy(x_NF), torch.from_numpy(y_N).long()


def _split(name: str, x_NF: Tensor, y_N: Tensor, counts: tuple[int, int, int]) -> Survey:
    """Parts in the order in which they come, all scaled by mean and deviation of the first."""
    x_train, x_valid, x_test = x_NF.split(counts)
    y_train, y_valid, y_test = y_N.split(counts)
    mean, std = x_train.mean(), x_train.std()
    parts = [(x - mean) / std for x in (x_train, x_valid, x_test)]
    return Survey(name, int(y_N.max()) + 1, parts[0], y_train, parts[1], y_valid, parts[2], y_test)
