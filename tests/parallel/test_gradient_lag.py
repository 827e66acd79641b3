"""Gradients that come one step late: equal to SGD by hand on two ranks, and after a stop."""

import dataclasses

import late
import mates
import pytest
import torch
from same_run import assert_same_run

from dltutorial.launch import launch

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks share")
LATE = dataclasses.replace(mates.SMALL, gradient_lag=1)


def test_updates_are_those_of_five_lines_by_hand():
    for knobs, hand in (
        ({"gradient_lag": 1}, late.by_hand(1)),
        ({"gradient_lag": 1, "beta1": 0.9, "clip_norm": 0.2}, late.by_hand(1, momentum=0.9, clip=0.2)),
        ({}, late.by_hand(0)),
    ):
        for found in launch(late.trained, 2, **knobs):
            torch.testing.assert_close(found, hand, rtol=1e-5, atol=1e-6)
    assert (late.by_hand(1) - late.by_hand(0)).abs().max() > 1e-3


@pytest.mark.ci
def test_a_run_that_was_stopped_goes_on_with_the_late_gradients(data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    launch(mates.train, 2, data, whole, LATE)
    assert launch(mates.train, 2, data, parts, LATE, end_at=5)[0][1] != "finished"
    assert launch(mates.train, 2, data, parts, LATE, resume=True)[0][1] == "finished"
    assert_same_run(whole, parts)
