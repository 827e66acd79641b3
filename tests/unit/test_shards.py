import itertools
import json
import random

import numpy as np
import pytest
import torch

from dltutorial.data import loaders, shards, store, workers
from dltutorial.errors import CourseError, DataError, RecipeError


@pytest.fixture(scope="module")
def split(tiny_data):
    return store.open_split(tiny_data, "train")


@pytest.fixture
def index(split, tmp_path):
    return shards.write(split, tmp_path / "shards", per_shard=4)


def fingerprint(x, y):
    return tuple(x[:, 5, 7].tolist()), tuple(y[:, 5, 7].tolist())


def seen(index, n_workers=0, epoch=0, **options):
    stream = shards.ShardStream(index, **options)
    stream.set_epoch(epoch)
    batches = workers.in_one_line(stream, n_workers, batch_size=3)
    return [fingerprint(x, y) for xs, ys in batches for x, y in zip(xs, ys, strict=True)]


def test_shards_hold_every_pair_once(index, split):
    assert len(set(seen(index))) == 18  # the fingerprint tells samples apart
    assert [shard.samples for shard in index.shards] == [4, 4, 4, 4, 2]
    assert shards.open_index(index.folder) == index
    assert sorted(seen(index)) == sorted(fingerprint(*pair) for pair in (loaders.Pairs(split)[i] for i in range(18)))


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2), (3, 1), (5, 2)])
def test_over_ranks_and_workers_no_sample_is_lost_and_none_comes_twice(index, world_size, workers):
    parts = [seen(index, workers, rank=rank, world_size=world_size, buffer=3) for rank in range(world_size)]
    assert sorted(itertools.chain(*parts)) == sorted(seen(index))


def test_every_epoch_has_its_own_order_and_a_seed_repeats_it(index):
    first, again, second = (seen(index, epoch=epoch, buffer=6) for epoch in (0, 0, 1))
    assert first == again != second
    assert sorted(first) == sorted(second)


def test_a_rank_gets_other_shards_in_every_epoch(index):
    parts = {frozenset(seen(index, epoch=epoch, rank=0, world_size=2)) for epoch in range(6)}
    assert len(parts) > 1


@pytest.mark.parametrize("size", [0, 1, 5, 100])
def test_the_buffer_hands_every_item_out_once(size):
    got = list(shards.shuffled(range(50), size, random.Random(0)))
    assert sorted(got) == list(range(50))
    assert (got == list(range(50))) == (size <= 1)


def truncate(file):
    file.write_bytes(file.read_bytes()[:500])


def flip(file):
    x = np.load(file)
    x[0, 0, 0, 0, 0] += 1
    np.save(file, x)


def transpose(file):
    np.save(file, np.asfortranarray(np.load(file)[::-1]))


DAMAGE = {
    "truncated": (truncate, "shard_00002.npy is truncated"),
    "no array": (lambda file: file.write_text("no"), "no array of numbers"),
    "missing": (lambda file: file.unlink(), "is missing"),
    "another shape": (lambda file: np.save(file, np.zeros((4, 2, 3, 8, 8), np.float32)), "but index.json says"),
    "another type": (lambda file: np.save(file, np.load(file).astype(np.float64)), "but index.json says"),
    "other values": (flip, "checksum"),
    "other values, in another order": (transpose, "checksum"),
}


@pytest.mark.parametrize(("damage", "workers"), [*((damage, 0) for damage in DAMAGE), ("truncated", 1)])
def test_a_damaged_shard_is_named(damage, workers, index):
    act, why = DAMAGE[damage]
    act(index.folder / "shard_00002.npy")
    with pytest.raises(DataError, match=why) as caught:
        seen(index, workers)
    assert "shard_00002.npy" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no", "is not readable JSON"),
        ("[]", "is no JSON object"),
        ('{"shape": [2, 3, 16, 24], "shards": []}', "names no shards"),
        ('{"shape": [3], "shards": [{"name": "a", "samples": 1, "crc32": 0}]}', "samples of shape"),
        ('{"shape": [2, 3, 16, 24], "shards": [{"name": "a"}]}', "is no index"),
        ('{"shape": [2, 3, 16, 24], "shards": [{"name": "a", "samples": 1e999, "crc32": 0}]}', "is no index"),
    ],
)
def test_a_damaged_index_is_one_line(text, why, index):
    (index.folder / "index.json").write_text(text)
    with pytest.raises(DataError, match=why) as caught:
        shards.open_index(index.folder)
    assert "\n" not in str(caught.value)


def test_shards_that_were_not_written_to_their_end_have_no_index(index):
    (index.folder / "index.json").unlink()
    with pytest.raises(DataError, match=r"index\.json is missing; the shards were not written to their end"):
        shards.open_index(index.folder)


def test_a_shard_cannot_lie_outside_its_folder(index):
    file = index.folder / "index.json"
    said = json.loads(file.read_text())
    said["shards"][0]["name"] = "../secret.npy"
    file.write_text(json.dumps(said))
    with pytest.raises(CourseError, match="stays inside its folder"):
        list(shards.ShardStream(shards.open_index(index.folder)))


def test_what_cannot_be_is_one_line(index, split, tmp_path):
    with pytest.raises(RecipeError, match="rank 0 of 6 with 5 shards"):
        shards.ShardStream(index, world_size=6)
    with pytest.raises(RecipeError, match="rank 2 of 2"):
        shards.ShardStream(index, rank=2, world_size=2)
    with pytest.raises(RecipeError, match="at least 1"):
        shards.write(split, tmp_path / "other", per_shard=0)
    with pytest.raises(DataError, match="is not an empty folder"):
        shards.write(split, index.folder, per_shard=4)


def test_samples_are_float32_tensors_of_the_index_shape(index):
    x, y = next(iter(shards.ShardStream(index)))
    assert x.dtype == y.dtype == torch.float32
    assert (2, *x.shape) == index.shape


def test_shards_do_not_go_where_something_is(index, split, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", index.folder):
        with pytest.raises(DataError, match="not an empty folder; choose another"):
            shards.write(split, place, 4)
