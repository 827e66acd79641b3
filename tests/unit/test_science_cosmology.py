"""Cosmology: the simulated boxes, CosmoFlow's layout and the network."""

import pytest
import torch

from dltutorial.science import boxes, cosmology
from dltutorial.science.cosmonet import CosmoNet


def test_boxes_hold_the_particles_they_should_and_clump_with_time():
    x_BCDHW, unit_BP = cosmology.simulate(64, 16)
    assert torch.equal(x_BCDHW, cosmology.simulate(64, 16)[0])
    assert unit_BP.abs().max() <= 1
    assert x_BCDHW.mean().item() == pytest.approx(cosmology.PARTICLES, rel=0.02)
    by_time = x_BCDHW.var((2, 3, 4)).mean(0)
    assert (by_time[:-1] > by_time[1:]).all()  # today first


def test_larger_sigma8_makes_larger_clumps():
    x_BCDHW, unit_BP = cosmology.simulate(200, 16)
    spread_B = x_BCDHW[:, 3].var((1, 2, 3)).log()
    assert torch.corrcoef(torch.stack((spread_B, unit_BP[:, 1])))[0, 1] > 0.7


def test_a_box_is_read_as_it_was_written(tmp_path):
    boxes.write_boxes(tmp_path / "train", 3, 16, seed=0)
    split = boxes.Boxes(tmp_path, "train")
    x_BCDHW, unit_BP = cosmology.simulate(3, 16, seed=0)
    x_CDHW, unit_P = split[1]
    assert len(split) == 3
    torch.testing.assert_close(x_CDHW, x_BCDHW[1].log1p())
    torch.testing.assert_close(unit_P, unit_BP[1])


def test_the_small_network_takes_small_boxes():
    assert CosmoNet(6, 3)(torch.zeros(2, 4, 16, 16, 16)).shape == (2, 4)
