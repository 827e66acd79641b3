"""The rehearsal of a CUDA graph refuses what a graph refuses. The check ``captured_step`` tests what it replays."""

import pytest
import torch

from dltutorial.course.checks.rehearsal import Tape
from dltutorial.errors import CourseError


def test_a_capture_that_looks_at_a_value_is_an_error_and_leaves_nothing_to_replay():
    x = torch.ones(3)
    tape = Tape()
    with pytest.raises(CourseError, match="looks at a value"), tape.capture():
        x.sum().item()
    with pytest.raises(CourseError, match="tape is empty"):
        tape.replay()
