"""Negatives of all ranks, and boxes cut into slabs, train as one process does."""

import dataclasses

import pytest
import torch
import volumes

from dltutorial.config import preset
from dltutorial.launch import launch
from dltutorial.science import cosmology, survey

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore:.*ranks share")]
KNOBS = {"global_batch_size": 8, "steps": 4, "log_every": 1, "eval_every": 4, "warmup_steps": 1, "device": "cpu"}
KNOBS |= {"optimizer": "sgd", "learning_rate": 0.05, "clip_norm": 0.0}


def assert_same(one, other):
    torch.testing.assert_close(torch.tensor(one[0][-1]), torch.tensor(other[0][-1]), rtol=1e-4, atol=1e-4)
    for (loss, *_), (same, *_) in zip(one[0], other[0], strict=True):
        assert loss == pytest.approx(same, rel=1e-5)
    for name, weight in one[1].items():
        torch.testing.assert_close(weight, other[1][name], rtol=1e-4, atol=1e-6)


def test_two_ranks_learn_a_survey_as_one_process_does(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    recipe = survey.make_recipe(preset("smoke"), KNOBS | {"task": "survey", "samples": 48}, None)
    folder = survey.ensure(recipe, progress=False)
    one, two = (launch(volumes.trained, n, folder, [recipe])[0][0] for n in (1, 2))
    assert_same(one, two)


def test_ranks_share_boxes_or_samples_and_learn_as_one_process_does(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    recipe = cosmology.make_recipe(preset("smoke"), KNOBS | {"task": "cosmology", "samples": 24}, None)
    folder = cosmology.ensure(recipe, progress=False)
    one = launch(volumes.trained, 1, folder, [recipe])[0][0]
    two = launch(volumes.trained, 2, folder, [recipe, dataclasses.replace(recipe, context=2)])[0]
    for shared in two:
        assert_same(one, shared)


def test_slabs_compute_the_whole_gradients_included():
    whole, slopes = launch(volumes.slabs, 1, "mean")[0]
    for rank in launch(volumes.slabs, 2, "mean"):
        torch.testing.assert_close(rank[0], whole)
        for mine, right in zip(rank[1], slopes, strict=True):
            torch.testing.assert_close(mine, right)
