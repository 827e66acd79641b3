"""Gradients that come one step late: equal to SGD by hand on any number of ranks, and after a stop."""

import dataclasses

import late
import mates
import pytest
import torch
from same_run import assert_same_run

from dltutorial.launch import launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
LATE = dataclasses.replace(mates.SMALL, gradient_lag=1)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_updates_are_those_of_five_lines_by_hand(n):
    for knobs, hand in (
        ({"gradient_lag": 1}, late.by_hand(1)),
        ({"gradient_lag": 1, "beta1": 0.9, "clip_norm": 0.2}, late.by_hand(1, momentum=0.9, clip=0.2)),
        ({"gradient_lag": 1, "accumulate": 2}, late.by_hand(1)),
        ({}, late.by_hand(0)),
    ):
        for found in launch(late.trained, n, **knobs):
            torch.testing.assert_close(found, hand, rtol=1e-5, atol=1e-6)
    assert (late.by_hand(1) - late.by_hand(0)).abs().max() > 1e-3


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("optimizer", "stop"),
    [("adamw", 5), ("sgd", 1), pytest.param("lamb", 7, marks=pytest.mark.ci),
     pytest.param("adamw", 1, marks=pytest.mark.ci)],
)  # fmt: skip
def test_a_run_that_was_stopped_goes_on_with_the_gradients_under_way(data, tmp_path, n, optimizer, stop):
    recipe = dataclasses.replace(LATE, optimizer=optimizer)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    launch(mates.train, n, data, whole, recipe)
    assert launch(mates.train, n, data, parts, recipe, end_at=stop)[0][1] != "finished"
    assert launch(mates.train, n, data, parts, recipe, resume=True)[0][1] == "finished"
    assert_same_run(whole, parts)


def test_a_run_goes_on_with_another_number_of_ranks(data, tmp_path):
    (alone,) = launch(mates.train, 1, data, tmp_path / "alone", LATE)
    launch(mates.train, 1, data, tmp_path / "run", LATE, end_at=5)
    found, ended = launch(mates.train, 2, data, tmp_path / "run", LATE, resume=True)[0]
    assert ended == "finished"
    assert found[-1][1] == pytest.approx(alone[0][-1][1], rel=1e-5)
