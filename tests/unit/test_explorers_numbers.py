import numpy as np
import pytest
import torch

from dltutorial.course.explorers.device import fates
from dltutorial.course.explorers.device import numbers as make
from dltutorial.errors import CourseError


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_fates_at_the_edges_of_a_format(dtype):
    form = torch.finfo(getattr(torch, dtype))
    smallest = form.tiny * form.eps
    lost, short = [0.0, smallest / 2], [0.501 * smallest, smallest, form.tiny - smallest]
    held, over = [form.tiny, 1.0, form.max, form.max * (1 + form.eps / 5)], [form.max * (1 + form.eps)]
    found, shares = fates(np.array([*lost, *short, *held, *over]), dtype)
    assert found == form
    assert shares == pytest.approx([0.2, 0.3, 0.4, 0.1])


def test_words_and_picture_tell_the_shares():
    explorer = make([2.0**-30] * 3 + [2.0**-20] + [0.0] * 6)
    assert "Scaled by 2^0, in fp16: 90% of the gradients are 0, 10% keep only some" in explorer.picture().text
    scaled = explorer.picture(log2_scale=16)
    assert "Scaled by 2^16, in fp16: 60% of the gradients are 0, 0% keep only some of their digits, 40%" in scaled.text
    assert "in bf16: 60% of the gradients are 0" in explorer.picture(dtype="bf16").text


def test_the_scale_reaches_the_overflow():
    explorer = make([2.0**-30] * 5)
    assert "100% overflow" in explorer.picture(log2_scale=explorer.controls["log2_scale"].options[-1][1]).text
    assert "<1%" in make([1.0] * 999 + [1e-12]).picture().text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_taken_signs_and_all(dtype):
    values = torch.tensor([[-1.0], [1e-20]], dtype=dtype, requires_grad=True)
    assert "50% of the gradients are 0" in make(values).picture().text


@pytest.mark.parametrize("values", [[], [0.0], [1.0, float("nan")], [float("inf")]])
def test_what_cannot_be_drawn_gets_one_line(values):
    with pytest.raises(CourseError, match="give"):
        make(values)
