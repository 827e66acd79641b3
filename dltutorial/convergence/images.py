"""The task of chapter 15, at the size that suits a machine, and its images on disk: simulated once, kept for later.

Data, network and target quality are the same for all attempts, so nobody can win by training on the validation images,
or by lowering the target. The images' file holds them, (N, H, W), float32, their labels (N,) and the training mean.

Legend: N images, H × W pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dltutorial import paths
from dltutorial.config import Preset
from dltutorial.data import lenses
from dltutorial.errors import DataError, RecipeError

SIZE = 32  # pixels of an image's edge


@dataclass(frozen=True)
class SolutionTask:
    """What every attempt must do: tell simulated strong lenses from other galaxies, this well.

    Attributes:
        target: accuracy on the validation images that counts as solved.
        train, valid: images.
        pool: edge of the square of pixels that becomes one feature.
        widths: of the hidden layers.
        seed: of the images; the weights and the order have the seed of a run.
    """

    target: float = 0.90
    train: int = 20_000
    valid: int = 2_000
    pool: int = 2
    widths: tuple[int, ...] = (64, 32)
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: RecipeError: a target that tells nothing, or that nobody can reach."""
        if not 0.5 < self.target < 1:
            raise RecipeError(f"task: target={self.target!r} is not between 0.5 (guessing) and 1; choose such as 0.9")

    @property
    def n_features(self) -> int:
        """Numbers that the network sees of an image."""
        return (SIZE // self.pool) ** 2


def task_for(preset: Preset, seed: int = 0) -> SolutionTask:
    """The capstone's task at the size that suits a kind of machine."""
    if preset.name in ("gpu", "cluster"):
        return SolutionTask(target=0.95, widths=(1024, 256), seed=seed)
    if preset.name == "smoke":
        return SolutionTask(target=0.94, train=10_000, seed=seed)
    return SolutionTask(target=0.95, seed=seed)


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
