"""Small data sets for studies that train hundreds of networks: simulated lenses, and handwritten digits.

In: a seed and sizes. Out: a frozen ``Survey``: flat float32 features with mean 0 and standard deviation 1 over the
training part, and labels, in three parts that share no image. Simulated lenses are stored on disk, so that the next
notebook only reads them.

Legend: N images, H rows, W columns, F features of one image.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dltutorial import node, paths
from dltutorial.data import formats
from dltutorial.data import lenses as simulated

_LAYOUT = 1  # of the files; raise it when the simulation or the features change


@dataclass(frozen=True)
class Survey:
    """A classification data set, on the CPU.

    Attributes:
        n_classes: labels are 0 … n_classes - 1.
        x_train, x_valid, x_test: features (N, F), float32.
        y_train, y_valid, y_test: labels (N,), int64.
    """

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

    The images are simulated at the first call, which takes seconds, and later read from the data folder.

    Args:
        seed: another seed gives other images.
        train, valid, test: number of images in each part.
        progress: show a progress bar.

    Raises:
        CourseError: The file cannot be written; or the images must be simulated, and this is a login node.
        DataError: The file cannot be read.
    """
    n = train + valid + test
    file = paths.data_dir() / "surveys" / f"lenses-v{_LAYOUT}-seed{seed}-{n}.npz"
    if not file.exists():
        node.refuse_on_login("simulating lenses")
        images_NHW, y_N = simulated.simulate(n, seed=seed, progress=progress)
        x_NF = functional.avg_pool2d(images_NHW[:, None], 2).flatten(1)
        with paths.atomic(file) as temporary, open(temporary, "wb") as opened:
            np.savez(opened, features=x_NF.numpy(), labels=y_N.numpy())
    with formats.readable(file), np.load(file, allow_pickle=False) as arrays:
        x_NF = torch.from_numpy(arrays["features"])
        y_N = torch.from_numpy(arrays["labels"]).long()
    return _split(x_NF, y_N, (train, valid, test))


def digits(seed: int = 0) -> Survey:
    """Which digit is in the image? 1797 real images of 8 × 8 pixels, 64 features, 10 classes.

    They come with scikit-learn, so there is no download. They are the test part of the UCI set "Optical Recognition of
    Handwritten Digits" (Alpaydin and Kaynak 1998). The seed decides which images are in which part: 400 to validate,
    400 to test, the others to train.
    """
    from sklearn.datasets import load_digits

    images = load_digits()
    n = len(images.target)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    x_NF = torch.from_numpy(images.data).float()[order]
    y_N = torch.from_numpy(images.target).long()[order]
    return _split(x_NF, y_N, (n - 800, 400, 400))


def _split(x_NF: Tensor, y_N: Tensor, counts: tuple[int, int, int]) -> Survey:
    """Divide the images, in their order, into three parts. All are scaled by mean and deviation of the first part."""
    x_train, x_valid, x_test = x_NF.split(counts)
    y_train, y_valid, y_test = y_N.split(counts)
    mean = x_train.mean()
    std = x_train.std()
    return Survey(
        n_classes=int(y_N.max()) + 1,
        x_train=(x_train - mean) / std,
        y_train=y_train,
        x_valid=(x_valid - mean) / std,
        y_valid=y_valid,
        x_test=(x_test - mean) / std,
        y_test=y_test,
    )
