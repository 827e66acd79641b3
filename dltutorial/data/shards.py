"""Samples in shards, read as a stream: for data that fit neither memory nor the node's disk.

    <folder>/index.json          shape of a sample; each shard with its name, number of samples and checksum
             shard_00000.npy …   samples (K, 2, C, H, W) float32: pairs of neighbouring snapshots

Large files are read from front to back, which every file system does well; nothing is looked up at random. Shuffling
is in two parts: the order of the shards, and a buffer from which samples are drawn. Every shard goes to one rank and
one worker in an epoch, so no sample is lost and none comes twice.

Legend: K samples in a shard, 2 states (now, next), C channels, H × W grid points.
"""

import json
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from dltutorial import paths
from dltutorial.data import formats, loaders, sampling, store, writing
from dltutorial.data.store import Split
from dltutorial.errors import DataError, RecipeError


@dataclass(frozen=True)
class Shard:
    """One file of samples: its name, how many there are, and the CRC-32 of its values."""

    name: str
    samples: int
    crc32: int


@dataclass(frozen=True)
class ShardIndex:
    """What ``index.json`` says: the shape (2, C, H, W) of a sample, and the shards."""

    folder: Path
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


def write(split: Split, folder: Path, per_shard: int, seed: int = 0) -> ShardIndex:
    """Write the pairs of a split to shards, normalised, in random order; ``index.json`` comes last.

    The order is shuffled once here, so that the neighbours of a shard are no neighbours in time.

    Raises:
        RecipeError: less than one sample a shard.
        DataError: the folder is taken, or cannot be written.
    """
    if per_shard < 1:
        raise RecipeError(f"{per_shard} samples a shard cannot be; take at least 1")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(f"{folder} is not an empty folder; choose another folder, or delete it")
    pairs, shards = loaders.Pairs(split), list[Shard]()
    writing.check_space(folder, int(1.01 * len(pairs) * 2 * split.sample_bytes))
    order = sampling.epoch_order(len(pairs), seed, 0).tolist()
    for first in range(0, len(order), per_shard):
        both_K2CHW = np.stack([torch.stack(pairs[i]).numpy() for i in order[first : first + per_shard]])
        file = folder / f"shard_{len(shards):05d}.npy"
        writing.save_array(file, both_K2CHW)
        shards.append(Shard(file.name, len(both_K2CHW), zlib.crc32(both_K2CHW.data)))
    index = ShardIndex(folder, (2, *split.shape), tuple(shards))
    said = {"shape": index.shape, "shards": [vars(shard) for shard in shards]}
    paths.write_text(folder / "index.json", json.dumps(said, indent=1) + "\n")
    return index


def open_index(folder: Path) -> ShardIndex:
    """Read ``index.json``; a DataError if it is missing or no index."""
    file = Path(folder) / "index.json"
    said = store.read_json(file)
    if said is None:
        raise DataError(f"{file} is missing; the shards were not written to their end, write them anew")
    try:
        shards = tuple(Shard(str(s["name"]), int(s["samples"]), int(s["crc32"])) for s in said["shards"])
        shape = tuple(int(n) for n in said["shape"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{file} is no index of shards ({formats.first_line(error)}); write the shards anew") from error
    if not shards or len(shape) != 4:
        raise DataError(f"{file} names no shards, or samples of shape {shape}; write the shards anew")
    return ShardIndex(Path(folder), shape, shards)


def read_shard(index: ShardIndex, shard: Shard) -> np.ndarray:
    """All samples (K, 2, C, H, W) of one shard.

    Raises:
        DataError: it is missing, truncated, damaged, or of another shape than the index says.
    """
    file, wanted = paths.inside(index.folder, shard.name), (shard.samples, *index.shape)
    with formats.blaming(file):
        samples_K2CHW = np.load(file, allow_pickle=False)
    if samples_K2CHW.dtype != np.float32 or samples_K2CHW.shape != wanted:
        found = samples_K2CHW.shape
        raise DataError(f"{file} holds {found}, but index.json says float32 {wanted}; fetch or write it anew")
    if zlib.crc32(np.ascontiguousarray(samples_K2CHW).data) != shard.crc32:
        raise DataError(f"{file} is damaged: its checksum is not that of index.json; fetch or write it anew")
    return samples_K2CHW


class ShardStream(IterableDataset):
    """The samples of one rank, as a stream of pairs (x_CHW, y_CHW); for ``DataLoader`` with any number of workers.

    Call ``set_epoch`` before every epoch. Ranks and workers take whole shards in turn: give each at least one, and as
    many samples as the others, or the ranks do not take the same number of steps.
    """

    def __init__(
        self, index: ShardIndex, *, buffer: int = 0, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        """Keep what decides the order; ``buffer`` samples are held to draw from, 0 keeps the order of the shard.

        Raises:
            RecipeError: a rank that cannot be, or more ranks than shards.
        """
        if not 0 <= rank < world_size <= len(index.shards):
            raise RecipeError(f"rank {rank} of {world_size} with {len(index.shards)} shards; write smaller shards")
        self.index, self.buffer, self.seed = index, buffer, seed
        self.rank, self.world_size, self.epoch = rank, world_size, 0

    def set_epoch(self, epoch: int) -> None:
        """The next iteration has the order of this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples of this process's shards, shuffled through the buffer; a DataError names a damaged shard."""
        info = get_worker_info()
        worker, n_workers = (info.id, info.num_workers) if info else (0, 1)
        order = sampling.epoch_order(len(self.index.shards), self.seed, self.epoch).tolist()
        mine = [self.index.shards[n] for n in order[self.rank :: self.world_size][worker::n_workers]]
        samples = (sample for shard in mine for sample in read_shard(self.index, shard))
        rng = random.Random(f"{self.seed} {self.epoch} {self.rank} {worker}")
        for both_2CHW in shuffled(samples, self.buffer, rng):
            x_CHW, y_CHW = torch.from_numpy(both_2CHW)
            yield x_CHW, y_CHW


def shuffled(items: Iterable, size: int, rng: random.Random) -> Iterator:
    """Shuffle a stream with a buffer: fill it, then hand out a random item for every new one, and empty it at the end.

    Every item comes once. An item leaves after about ``size`` further ones have come; so a buffer of several shards
    mixes samples of several shards.
    """
    held: list = []
    for item in items:
        if len(held) < size:
            held.append(item)
            continue
        if size:
            place = rng.randrange(size)
            held[place], item = item, held[place]
        yield item
    rng.shuffle(held)
    yield from held
