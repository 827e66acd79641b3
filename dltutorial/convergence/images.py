"""The images of a task on disk, and three ways to get batches out of them.

In: a task. Out: a folder with ``train.npy`` (N, H, W), float32, and its labels, the same for validation, and the mean
of the training images, which is subtracted from every image; simulated once, kept for later. From it ``make_loader``
gives a function from numbers of images to a batch on the device. The three loaders read the same files and give the
same images, up to rounding; they differ in what that costs:

- ``naive_batch``: one image after another, in float64, as in the notebooks we all once wrote;
- ``lean_batch``: all images of a batch in one go, in float32;
- staged: everything is read, and pooled, before the first step, then a batch is one lookup in memory.

Legend: N images, B of a batch, H × W pixels, F features (pooled pixels, flattened).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dltutorial import paths
from dltutorial.convergence.recipe import SIZE, Task
from dltutorial.data import lenses
from dltutorial.data.surveys import Survey
from dltutorial.errors import DataError

_MEND = "remove that folder, and run again"
Load = Callable[[Tensor], tuple[Tensor, Tensor]]  # numbers of images (B,) → features (B, F), labels (B,)


@dataclass(frozen=True)
class Files:
    """Where the images and labels of one task lie."""

    folder: Path

    def open(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images (N, H, W), mapped into memory, not read; and their labels (N,).

        Raises:
            DataError: a file is missing or damaged.
        """
        try:
            images_NHW = np.load(self.folder / f"{split}.npy", mmap_mode="r", allow_pickle=False)
            labels_N = np.load(self.folder / f"{split}_labels.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"cannot read the {split} images in {self.folder} ({error}); {_MEND}") from error
        if images_NHW.shape != (len(labels_N), SIZE, SIZE):
            raise DataError(f"{self.folder} holds other images than it should; {_MEND}")
        return images_NHW, labels_N

    def mean(self, pool: int) -> Tensor:
        """The mean training image, as features (F,).

        Raises:
            DataError: the file is missing or damaged.
        """
        try:
            mean_HW = np.load(self.folder / "mean.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"cannot read the mean image in {self.folder} ({error}); {_MEND}") from error
        return pooled(torch.from_numpy(mean_HW)[None], pool)[0]


def prepare(task: Task) -> Files:
    """The files of a task; simulated and written if they are not there yet.

    Raises:
        CourseError: they cannot be written.
    """
    folder = paths.data_dir() / f"solution-{task.seed}-{task.train}-{task.valid}"
    files = Files(folder)
    if not (folder / "whole").exists():  # written last: with it, all the others are there
        images_NHW, labels_N = lenses.simulate(task.train + task.valid, SIZE, task.seed, progress=False)
        for split, part in (("train", slice(task.train)), ("valid", slice(task.train, None))):
            _write(folder / f"{split}.npy", images_NHW[part].numpy())
            _write(folder / f"{split}_labels.npy", labels_N[part].numpy())
        _write(folder / "mean.npy", images_NHW[: task.train].mean(0).numpy())
        paths.write_text(folder / "whole", "")
    return files


def pooled(images_BHW: Tensor, pool: int) -> Tensor:
    """Means over squares of pixels, flattened: (B, F)."""
    return F.avg_pool2d(images_BHW[:, None], pool).flatten(1)


def naive_batch(
    images_NHW: np.ndarray, labels_N: np.ndarray, chosen_B: Tensor, mean_F: Tensor, pool: int
) -> tuple[Tensor, Tensor]:
    """One image after another, in double precision."""
    features, labels = [], []
    for number in chosen_B.tolist():
        image_HW = np.asarray(images_NHW[number], dtype=np.float64)
        squares = image_HW.reshape(SIZE // pool, pool, SIZE // pool, pool)
        features.append((torch.tensor(squares.mean((1, 3)).reshape(-1)) - mean_F).float())
        labels.append(torch.tensor(labels_N[number]))
    return torch.stack(features), torch.stack(labels)


def lean_batch(
    images_NHW: np.ndarray, labels_N: np.ndarray, chosen_B: Tensor, mean_F: Tensor, pool: int
) -> tuple[Tensor, Tensor]:
    """All of them in one go, in the order in which they lie on disk."""
    chosen = np.sort(chosen_B.numpy())
    return pooled(torch.from_numpy(images_NHW[chosen]), pool) - mean_F, torch.from_numpy(labels_N[chosen])


def make_loader(name: str, files: Files, task: Task, device: str = "cpu") -> Load:
    """A function that loads batches; making the staged one takes as long as reading everything does."""
    if name == "staged":
        x_NF, y_N = whole(files, "train", task, device)
        return lambda chosen_B: (x_NF[chosen_B.to(device)], y_N[chosen_B.to(device)])
    (images_NHW, labels_N), mean_F = files.open("train"), files.mean(task.pool)
    batch = {"naive": naive_batch, "lean": lean_batch}[name]

    def load(chosen_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BF, y_B = batch(images_NHW, labels_N, chosen_B, mean_F, task.pool)
        return x_BF.to(device), y_B.to(device)

    return load


def whole(files: Files, split: str, task: Task, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """All features (N, F) and labels (N,) of a split, read, pooled and brought to the device."""
    images_NHW, labels_N = files.open(split)
    x_NF = pooled(torch.from_numpy(np.array(images_NHW)), task.pool) - files.mean(task.pool)
    return x_NF.to(device), torch.from_numpy(labels_N).to(device)


def survey(files: Files, task: Task) -> Survey:
    """The same features as a ``Survey``, for an ensemble of networks; it has no images for a test."""
    (x_train, y_train), (x_valid, y_valid) = (whole(files, split, task) for split in ("train", "valid"))
    return Survey("simulated lenses", 2, x_train, y_train, x_valid, y_valid, x_valid[:0], y_valid[:0])


def _write(file: Path, array: np.ndarray) -> None:
    with paths.atomic(file) as temporary, open(temporary, "wb") as out:
        np.save(out, array, allow_pickle=False)
