"""Gradients that are one step late: training on two ranks equals SGD by hand."""

import late
import pytest
import torch

from dltutorial.launch import launch


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_equal_those_of_sgd_by_hand(momentum):
    expected = late.by_hand(lag=True, momentum=momentum)
    for weights in launch(late.trained, 2, momentum):
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    assert (expected - late.by_hand(lag=False, momentum=momentum)).abs().max() > 1e-3
