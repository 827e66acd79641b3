"""What can be trained, by name, and what the cases of science share: data that are kept, batches of them.

A case is a module with

    SCORE                               the score of its ``Task.metrics`` that tuning makes small
    make_recipe(base, knobs, folder)    the ``Recipe`` of a preset with these knobs; a folder, if there is one, may tell
    ensure(recipe, progress=True)       the folder of the simulated data for it, made unless it is there
    make_task(recipe, folder)           its ``Task`` on that folder, or on real data in the same layout
    notes(recipe, folder)               lines to say before the training, if there are any

Everything that comes as ``--data DIR`` is a folder in the layout that the case's module describes.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_convert

from dltutorial import node, paths
from dltutorial.config import Preset
from dltutorial.data import formats, sampling, store, writing
from dltutorial.data.workers import worker_batches
from dltutorial.engine.distributed import data_rank, data_world_size, tells_of_data
from dltutorial.engine.recipe import TASKS, RankRecipe, Recipe
from dltutorial.errors import DataError, RecipeError

_SEEDS = 2**31  # of augmentations
_CHANNELS = (1, 3, 4, 10, 12, 13)  # of pictures, and of Sentinel-2
_WHOLE_BYTES, _BLOCK_BYTES, _SMALL_BYTES = 2**28, 2**18, 2**16  # of ``digest``: of all files, of a block, of a file

#: ``read(indices, seeds)`` gives tensors (B, …) of these samples; the seeds (B,) are those of their augmentation.
Read = Callable[[list[int], Tensor], tuple[Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class Simulated:
    """All that decides simulated samples: how many to train with and to validate, cells along an edge, a kind, …"""

    samples: int
    n_valid: int = 500
    size: int = 0
    kind: str = ""
    seed: int = 0
    version: int = 1


def case(name: object) -> Any:
    """The module of a case. RecipeError: there is none of that name."""
    if name not in TASKS:
        raise RecipeError(f"recipe: task={name!r}, but task must be one of {', '.join(TASKS)}; change it")
    return importlib.import_module("dltutorial.engine.forecasting" if name == "weather" else f"{__package__}.{name}")


def recipe_of(
    base: Preset, defaults: Mapping[str, Mapping[str, Any]], knobs: Mapping[str, Any], networks: tuple[str, ...] = ()
) -> Recipe:
    """The recipe of a case: its defaults for this preset (those of ``smoke`` where it names none), then the knobs.

    Raises:
        RecipeError: a knob that cannot be, or a network that is none of these, if they are given.
    """
    said = {name: value for name, value in knobs.items() if (name, value) != ("samples", 0)}  # 0: the preset's
    recipe = Recipe.of(base, **{**defaults.get(base.name, defaults["smoke"]), **said})
    if networks:
        recipe.require(recipe.network in ("", *networks), "network", f"must be one of {', '.join(networks)}")
    return recipe


@contextlib.contextmanager
def opened(file: Path, **shapes: str) -> Iterator[list[h5py.Dataset]]:
    """Datasets of an HDF5 file, by name; a shape has a letter for any number of a dimension, or digits: ``N H W 19``.

    Raises:
        DataError: as of ``formats.dataset``; no numbers, other shapes, or sizes that differ under one letter.
    """
    sizes: dict[str, int] = {}
    with formats.blaming(file), formats.open_hdf5(file) as h5:
        found = [formats.dataset(file, h5, name) for name in shapes]
        for (name, shape), data in zip(shapes.items(), found, strict=True):
            is_now, dims = tuple(data.shape or ()), re.findall(r"[A-Z]|\d+", shape)
            fits = len(dims) == len(is_now) and all(
                n == (int(d) if d.isdigit() else sizes.setdefault(d, n)) for d, n in zip(dims, is_now, strict=True)
            )
            if shape == "NCHW" and fits and is_now[1] == is_now[2] > is_now[3] and is_now[3] in _CHANNELS:
                raise DataError(f"{file}: {name} is {is_now}, channels last, it seems; write N, C, H, W")
            if not fits or 0 in is_now or data.dtype.kind not in "fiub":
                wanted = ", ".join(str(sizes.get(d, d)) for d in dims)
                what = f"{name} is {data.dtype} {is_now}, not numbers ({wanted})"
                raise DataError(f"{file}: {what}; write it as such")
        yield found


def arrays(file: Path, **shapes: str) -> list[np.ndarray]:
    """What ``opened`` finds, float32.

    DataError: also if a number is NaN, infinite, or stands for no value; or if float32 holds too few of its digits.
    """
    with opened(file, **shapes) as found, np.errstate(over="ignore", invalid="ignore"):
        stored = [data[...] for data in found]
        own = [formats.own_no_value(file, data.attrs) for data in found]
        read = [rows.astype(np.float32, copy=False) for rows in stored]
        for name, rows, kept in zip(shapes, stored, read, strict=True):
            if len(rows) > 50:  # samples, no list of statistics; a table by its columns; some lose nothing
                loses = (rows != kept).any(axis := 0 if rows.ndim == 2 else None)
                store.refuse_coarse(file, name, loses * rows.min(axis), loses * rows.max(axis))
    for name, rows, no_value in zip(shapes, read, own, strict=True):
        if not (finite := np.isfinite(rows)).all():
            row = np.argwhere(~finite)[0, 0]
            raise DataError(f"{file}: row {row} of {name} holds NaN or infinity; correct it, or leave it out")
        ends = np.stack([rows.min(), rows.max()])
        for x in (*ends[store.no_value(ends)], *rows[rows == no_value][:1]):
            raise DataError(f"{file}: {name} holds {x:g}, which stands for no value; correct it, or leave it out")
    return read


def classes(file: Path, labels: np.ndarray, n: int) -> np.ndarray:
    """Labels as int64. DataError: one is none of the whole numbers from 0 to n - 1."""
    if (bad := ~np.isin(labels, np.arange(n))).any():
        wrong = f"has a label {labels[bad][0]:g}, but all must be whole numbers from 0 to {n - 1}"
        raise DataError(f"{file} {wrong}; correct them")
    return labels.astype(np.int64)


def files(place: Path, layout: str) -> list[Path]:
    """The HDF5 files of a folder, in the order of their names. DataError: there are none; ``layout`` says of what."""
    with formats.blaming(place):
        there = sorted(place.iterdir()) if place.is_dir() else []
    if found := [f for f in there if f.suffix.lower() in (".h5", ".hdf5") and not f.name.startswith(".")]:
        return found
    raise DataError(f"{place} holds no .h5 file; see science/{layout}.py for the layout")


def write(file: Path, content: Mapping[str, Any], **attributes: float) -> None:
    """An HDF5 file of these arrays. OSError: the disk refuses."""
    with writing.hdf5(file, sum(np.asarray(array).nbytes for array in content.values())) as out:
        out.update(content)
        out.attrs.update(attributes)


def digest(files: Sequence[Path]) -> str:
    """Sixteen characters for what these files hold, in this order. DataError: one cannot be read, or is irregular.

    All bytes count; of more than 256 MiB the size of each file, its ends, and blocks spread evenly between them. Small
    files are read whole.
    """
    sizes = []
    for file in files:
        with formats.blaming(file):
            sizes.append(file.stat().st_size)
    told, share = hashlib.blake2b(repr(sizes).encode(), digest_size=8), min(1.0, _WHOLE_BYTES / max(1, sum(sizes)))
    for file, size in zip(files, sizes, strict=True):
        wanted = max(min(size, _SMALL_BYTES), math.ceil(share * size))
        n = max(2, -(-wanted // _BLOCK_BYTES))
        block = -(-wanted // n)
        with formats.blaming(file), open(file, "rb") as stream:
            for place in range(n):
                stream.seek(place * (size - block) // (n - 1))
                told.update(stream.read(block))
    return told.hexdigest()


def kept(name: str, plan: Any, make: Callable[[Path], object], n_bytes: int, progress: bool = True) -> Path:
    """The folder of simulated data; what is missing there is made, what is there stays. ``dataset.json`` comes last.

    Args:
        name: of the case.
        plan: a dataclass of all that decides the data, their version included; another plan has another folder.
        make: fills an empty folder; after an interrupt it is called again.
        n_bytes: that it will write.
        progress: say so when another process is making them.

    Raises:
        DataError: the folder cannot be written, has too little space, or holds other data.
        CourseError: they have to be simulated, and this is a login node.
    """
    said = json.loads(json.dumps(dataclasses.asdict(plan)))
    planned = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]
    folder = paths.data_dir() / f"{name}-{planned}"
    if _is_whole(folder, said):
        return folder
    node.refuse_on_login(f"simulating data for {name}", f"in a job: sbatch -N 1 slurm/train.sbatch --task {name}")
    with writing.locked(folder, progress):
        if not _is_whole(folder, said):  # another process may have been quicker
            for left in folder.glob(".*.partial"):  # of one that was killed
                shutil.rmtree(left, ignore_errors=True)
            writing.check_space(folder, n_bytes)
            with writing.refusals(folder), tempfile.TemporaryDirectory(".partial", ".", folder) as new:
                make(Path(new))
                files = {str(file.relative_to(new)): file for file in Path(new).rglob("*") if file.is_file()}
                about = {"case": name, "plan": said, "files": sorted(files)}
                paths.write_text(Path(new) / "dataset.json", json.dumps(about, indent=1) + "\n")
                for own in (n for n in files if (folder / n).exists() and not store.about(folder)):
                    if digest([folder / own]) != digest([files[own]]):  # a making that was cut short left the same
                        raise DataError(f"{folder / own} is not of this data set, and stays; move it away, then again")
                for there, file in (files | {"dataset.json": Path(new) / "dataset.json"}).items():
                    if not (place := folder / there).exists():
                        place.parent.mkdir(parents=True, exist_ok=True)
                        file.rename(place)
    return folder


def _is_whole(folder: Path, plan: Mapping[str, Any]) -> bool:
    """Whether all files of simulated data are there. DataError: the folder holds data of another plan."""
    about = store.about(folder)
    if about and about.get("plan") != plan:
        raise DataError(f"{folder} holds data of another plan, which are not overwritten; move the folder away")
    with formats.blaming(folder / "dataset.json"):  # whatever it was edited to
        return bool(about) and all((folder / name).is_file() for name in about.get("files", ()))


class _Samples(Dataset):
    """Batches of keys (index, seed), in the process that loads."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def __getitems__(self, keys: list[tuple[int, int]]) -> tuple[Tensor, ...]:
        """Tensors (B, …)."""
        indices, seeds = zip(*keys, strict=True)
        return self._read(list(indices), torch.tensor(seeds))


def batches(n: int, read: Read, recipe: Recipe, skip: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """This rank's part of one batch after another, for ever, in the order that all ranks and all resumed runs share.

    Args:
        n: samples.
        read: one batch; it travels to ``recipe.workers`` loading processes, if there are any.
        recipe: batch size, seed, workers.
        skip: batches that a resumed run has seen.

    Raises:
        DataError: fewer samples than a batch takes; what ``read`` raises.
    """
    place = {"rank": data_rank(recipe), "world_size": data_world_size(recipe), "skip": skip}
    draws = sampling.endless(n, recipe.global_batch_size, seed=recipe.seed, width=_SEEDS, **place)
    keys = (list(zip(indices, seeds, strict=True)) for indices, seeds in draws)
    yield from worker_batches(_Samples(read), keys, recipe.workers, default_convert)


def feed(there: int, read: Read, recipe: Recipe) -> Callable[[int], Iterator[tuple[Tensor, ...]]]:
    """``batches`` of as many samples as the recipe wants, by skip. DataError, now, not later: a batch takes more."""
    n = min(recipe.samples or there, there)
    sampling.endless(n, recipe.global_batch_size)
    return lambda skip: batches(n, read, recipe, skip)


def shared(n: int, size: int, mesh: RankRecipe) -> Iterator[tuple[list[int], bool]]:
    """This rank's batches of n samples, and whether each counts: all ranks get as many, for each may be a message."""
    parts, ranks = torch.arange(n).split(size), data_world_size(mesh)
    for turn in range(data_rank(mesh), -(-len(parts) // ranks) * ranks, ranks):
        yield parts[min(turn, len(parts) - 1)].tolist(), turn < len(parts) and tells_of_data(mesh)
