"""The images of a task on disk, and three ways to get batches out of them.

In: a task. Out: one file with images (N, H, W), float32, labels (N,) and the mean of the training images, which is
subtracted from every image; simulated once, kept for later. From it ``make_loader`` gives a function from numbers of
images to a batch on the device. The three loaders read the same file and give the same images, up to rounding; they
differ in what that costs:

- ``naive_batch``: one image after another, in float64, as in the notebooks we all once wrote;
- ``lean_batch``: all images of a batch in one go, in float32;
- staged: everything is read, and pooled, before the first step, then a batch is one lookup in memory.

Legend: N images, B of a batch, H × W pixels, F features (pooled pixels, flattened).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from dltutorial import paths
from dltutorial.convergence.recipe import SIZE, SolutionTask
from dltutorial.data import lenses
from dltutorial.data.surveys import Survey
from dltutorial.errors import DataError

Load = Callable[[Tensor], tuple[Tensor, Tensor]]  # numbers of images (B,) → features (B, F), labels (B,)


def prepare(task: SolutionTask) -> Path:
    """The file of a task's images; simulated and written if it is not there yet.

    Raises:
        CourseError: it cannot be written.
    """
    file = paths.data_dir() / f"solution-{task.seed}-{task.train}-{task.valid}.pt"
    if not file.exists():
        images_NHW, labels_N = lenses.simulate(task.train + task.valid, SIZE, task.seed, progress=False)
        arrays = {"mean": images_NHW[: task.train].mean(0)}
        for split, part in (("train", slice(task.train)), ("valid", slice(task.train, None))):
            arrays |= {split: images_NHW[part].clone(), f"{split}_labels": labels_N[part].clone()}
        with paths.atomic(file) as temporary:
            torch.save(arrays, temporary)
    return file


def read(file: Path) -> Mapping[str, Tensor]:
    """The arrays "train", "train_labels", "valid", "valid_labels" and "mean", mapped into memory, not read.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        return torch.load(file, mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot read the images in {file} ({error}); remove that file, and run again") from error


def pooled(images_BHW: Tensor, pool: int) -> Tensor:
    """Means over squares of pixels, flattened: (B, F)."""
    return F.avg_pool2d(images_BHW[:, None], pool).flatten(1)


def naive_batch(images_NHW: Tensor, chosen_B: Tensor, mean_HW: Tensor, pool: int) -> Tensor:
    """Features (B, F): one image after another, in double precision."""
    features = []
    for number in chosen_B.tolist():
        image_HW = images_NHW[number].double() - mean_HW.double()
        features.append(image_HW.reshape(SIZE // pool, pool, SIZE // pool, pool).mean((1, 3)).flatten().float())
    return torch.stack(features)


def lean_batch(images_NHW: Tensor, chosen_B: Tensor, mean_HW: Tensor, pool: int) -> Tensor:
    """Features (B, F): all of them in one go."""
    return pooled(images_NHW[chosen_B] - mean_HW, pool)


def make_loader(name: str, file: Path, task: SolutionTask, device: str = "cpu") -> Load:
    """A function that loads batches; making the staged one takes as long as reading everything does."""
    if name == "staged":
        x_NF, y_N = whole(file, "train", task, device)
        return lambda chosen_B: (x_NF[chosen_B.to(device)], y_N[chosen_B.to(device)])
    arrays, batch = read(file), {"naive": naive_batch, "lean": lean_batch}[name]

    def load(chosen_B: Tensor) -> tuple[Tensor, Tensor]:
        x_BF = batch(arrays["train"], chosen_B, arrays["mean"], task.pool)
        return x_BF.to(device), arrays["train_labels"][chosen_B].to(device)

    return load


def whole(file: Path, split: str, task: SolutionTask, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """All features (N, F) and labels (N,) of a split, read, pooled and brought to the device."""
    arrays = read(file)
    x_NF = pooled(arrays[split] - arrays["mean"], task.pool)
    return x_NF.to(device), arrays[f"{split}_labels"].clone().to(device)


def survey(file: Path, task: SolutionTask) -> Survey:
    """The same features as a ``Survey``, for an ensemble of networks; it has no images for a test."""
    (x_train, y_train), (x_valid, y_valid) = (whole(file, split, task) for split in ("train", "valid"))
    return Survey("simulated lenses", 2, x_train, y_train, x_valid, y_valid, x_valid[:0], y_valid[:0])
