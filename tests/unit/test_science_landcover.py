"""Land cover: the simulated tiles, both networks, both F1, refusals."""

import h5py
import numpy as np
import pytest
import torch

from dltutorial import config
from dltutorial.errors import DataError
from dltutorial.science import landcover


def write(folder, n=60, size=12, change=lambda images, labels: (images, labels)):
    folder.mkdir(parents=True)
    for number, split in enumerate(landcover.SPLITS.values()):
        images, labels = change(*landcover.simulate(n, size, seed=number))
        with h5py.File(folder / f"{split}.h5", "w") as h5:
            h5["images"], h5["labels"] = images, labels
    return folder


def recipe(**knobs):
    return landcover.make_recipe(config.preset("smoke"), {"global_batch_size": 8, **knobs}, None)


def every_class(images, labels):
    labels[0] = 1
    return images, labels


def test_tiles_are_the_same_for_one_seed_and_differ_for_two():
    (x, y), (again, _), (other, _) = (landcover.simulate(20, 12, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(x, again)
    assert not np.array_equal(x, other)
    assert x.dtype == np.uint16
    assert x.shape == (20, 12, 12, 12)
    assert y.shape == (20, 19)
    assert y.sum(1).min() >= 1


def test_resnet_50_takes_twelve_bands_and_the_small_one_small_tiles():
    with torch.device("meta"):
        network = landcover.make_network("resnet50", 12)
        assert network(torch.zeros(2, 12, 120, 120)).shape == (2, 19)
    assert landcover.make_network("", 12)(torch.zeros(2, 12, 24, 24)).shape == (2, 19)


def test_micro_adds_up_first_and_macro_last():
    there = torch.tensor([[1, 1], [1, 0], [1, 0], [0, 0]])
    said = torch.tensor([[1, 0], [1, 1], [1, 0], [0, 0]])
    counts_3K = landcover.count(said, there)
    assert counts_3K.tolist() == [[3, 0], [0, 1], [0, 1]]
    assert landcover.f1(counts_3K) == pytest.approx((6 / 8, 0.5))
    assert landcover.f1(torch.zeros(3, 2)) == (0.0, 0.0)


def test_a_seed_turns_and_mirrors_its_tile(tmp_path):
    tiles = landcover.Tiles(write(tmp_path / "tiles"), "train")
    x, _ = tiles.batch([0, 2])
    turned, _ = tiles.batch([0, 2], torch.tensor([1, 4]), turn=True)
    assert torch.equal(turned[0], torch.rot90(x[0], 1, (1, 2)))
    assert torch.equal(turned[1], x[1].flip(2))


def test_a_task_has_batches_a_loss_and_both_f1(tmp_path):
    task = landcover.make_task(recipe(), write(tmp_path / "tiles", change=every_class))
    task.loss(task.model, *next(task.data(0))).backward()
    assert {"valid/f1 micro", "valid/f1 macro"} <= set(task.metrics(task.model))


def nan(images, labels):
    images = images.astype(np.float32)
    images[:, 0, 0, 0] = np.nan
    return images, labels


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x, y: (x, y + 1), "has a label 2, but"),
        (lambda x, y: (x, y[:, :5]), r"labels is uint8 \(60, 5\)"),
        (lambda x, y: nan(*every_class(x, y)), "tile 0 holds NaN"),
    ],
)
def test_data_that_cannot_be_are_refused_in_one_line(change, why, tmp_path):
    with pytest.raises(DataError, match=why) as refused:
        landcover.make_task(recipe(), write(tmp_path / "bad", change=change))
    assert "\n" not in str(refused.value)
