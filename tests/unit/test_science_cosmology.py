"""The case cosmology: boxes that are what they are said to be, the network, and data that cannot be."""

import h5py
import pytest
import torch

from dltutorial.config import preset
from dltutorial.errors import DataError
from dltutorial.science import cosmology


@pytest.fixture
def folder(tmp_path):
    x_BCDHW, unit_BP = cosmology.simulate(12, 16)
    for name, part in (("train", slice(8)), ("valid", slice(8, 12))):
        (tmp_path / name).mkdir()
        for n, (x_CDHW, unit_P) in enumerate(zip(x_BCDHW[part], unit_BP[part], strict=True)):
            cosmology.write(tmp_path / name / f"box_{n}.h5", x_CDHW, unit_P)
    return tmp_path


def recipe(**knobs):
    return cosmology.make_recipe(preset("smoke"), {"global_batch_size": 4, "device": "cpu", **knobs}, None)


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


def test_the_published_network_has_the_weights_of_its_configuration():
    with torch.device("meta"):
        model = cosmology.CosmoNet(128, 32, 5, "published")
        assert model(torch.empty(2, 4, 128, 128, 128)).shape == (2, 4)
    assert sum(p.numel() for p in model.parameters()) == 8_907_556


def test_a_box_is_read_as_it_was_written(folder):
    x_CDHW, unit_P = cosmology.read(folder / "train" / "box_0.h5")
    x_BCDHW, unit_BP = cosmology.simulate(12, 16)
    torch.testing.assert_close(x_CDHW, x_BCDHW[0].log1p())
    torch.testing.assert_close(unit_P, unit_BP[0])


def test_all_48_ways_to_turn_a_box_occur():
    x_CDHW = torch.arange(27.0).view(1, 3, 3, 3)
    assert len({tuple(cosmology.turned(x_CDHW, seed).flatten().tolist()) for seed in range(1000)}) == 48


def test_a_task_has_losses_and_scores(folder):
    task = cosmology.make_task(recipe(), folder)
    task.loss(task.model, *next(iter(task.data(0)))).backward()
    scores = task.metrics(task.model)
    assert 0 < scores[cosmology.SCORE] < 2
    assert len(scores) == 5
    task.check_data()


def change(file, name, value):
    with h5py.File(file, "a") as out:
        del out[name]
        out[name] = value


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("unitPar", [0, 0, 2.5, 0], "is not between -1 and 1"),
        ("full", torch.full((16, 16, 16, 4), torch.nan).numpy(), "row 0 of full holds NaN"),
        ("full", torch.zeros(16, 16, 8, 4).numpy(), "not numbers"),
    ],
)
def test_a_box_that_cannot_be_is_named_in_one_line(folder, name, value, says):
    change(folder / "valid" / "box_1.h5", name, value)
    with pytest.raises(DataError, match=says) as refused:
        cosmology.make_task(recipe(), folder).check_data()
    assert "box_1.h5" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match=r"holds no \.h5 file"):
        cosmology.make_task(recipe(), tmp_path / "nowhere")
