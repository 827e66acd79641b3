"""Land cover: simulated tiles, their layout, and ResNet-50."""

import numpy as np
import pytest
import torch

from dltutorial.science import landcover
from dltutorial.science.resnet import ResNet


@pytest.fixture
def folder(tmp_path):
    landcover.write_tiles(tmp_path / "train.h5", 20, 12, number=0)
    return tmp_path


def test_tiles_are_the_same_for_one_seed_and_differ_for_two():
    (x, y), (again, _), (other, _) = (landcover.simulate(20, 12, seed) for seed in (0, 0, 1))
    assert np.array_equal(x, again)
    assert not np.array_equal(x, other)
    assert x.dtype == np.uint16
    assert x.shape == (20, 12, 12, 12)
    assert y.shape == (20, 19)
    assert y.sum(1).min() >= 1


def test_tiles_are_read_one_or_many_at_a_time(folder):
    tiles = landcover.Tiles(folder, "train")
    x_NCHW, y_NK = tiles[:]
    x_CHW, y_K = tiles[3]
    assert (len(tiles), x_NCHW.shape, y_NK.shape) == (20, (20, 12, 12, 12), (20, 19))
    assert torch.equal(x_CHW, x_NCHW[3])
    assert torch.equal(y_K, y_NK[3])


def test_resnet_50_has_the_published_weights_and_takes_twelve_bands():
    with torch.device("meta"):
        assert sum(p.numel() for p in ResNet(3, 1000).parameters()) == 25_557_032
        assert ResNet(12, 19)(torch.zeros(2, 12, 120, 120)).shape == (2, 19)
        assert ResNet(12, 19, (1, 1, 1), 12, quarter=False)(torch.zeros(2, 12, 24, 24)).shape == (2, 19)
