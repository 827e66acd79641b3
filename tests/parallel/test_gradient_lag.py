"""Gradients that come one step late: equal to SGD by hand on two ranks."""

import late
import pytest
import torch

from dltutorial.launch import launch


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_five_lines_by_hand(momentum):
    expected = late.by_hand(lag=True, momentum=momentum)
    for found in launch(late.trained, 2, momentum):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (expected - late.by_hand(lag=False, momentum=momentum)).abs().max() > 1e-3
