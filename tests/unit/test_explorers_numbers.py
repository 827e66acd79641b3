import numpy as np
import pytest
import torch

from dltutorial.course.explorers.device import numbers as make
from dltutorial.errors import CourseError
from dltutorial.train.number_formats import FORMATS, fates


@pytest.fixture(scope="module")
def magnitudes():
    """Over fp16's whole range and beyond, with its edges and zero among them."""
    fp16 = FORMATS["fp16"]
    edges = [fp16.smallest / 2, fp16.smallest, fp16.smallest_normal, fp16.largest, fp16.largest + 16]
    near = [edge * factor for edge in edges for factor in (0.999, 1.0, 1.0001)]
    scattered = 2.0 ** np.random.default_rng(0).uniform(-150, 30, 5000)
    return np.sort(np.float32(np.concatenate([near, scattered, [0.0]])).astype(np.float64))


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
@pytest.mark.parametrize("log2_scale", [0, 16, -20, 40])
def test_fates_are_what_rounding_by_torch_gives(magnitudes, name, dtype, log2_scale):
    found = fates(magnitudes.tolist(), FORMATS[name], 2.0**log2_scale)
    rounded = torch.tensor(magnitudes * 2.0**log2_scale, dtype=torch.float64).to(dtype).double()
    smallest_normal = torch.finfo(dtype).tiny
    n = len(magnitudes)
    assert found.zero == (rounded == 0).sum().item() / n
    assert found.infinite == rounded.isinf().sum().item() / n
    assert found.subnormal == ((rounded > 0) & (rounded < smallest_normal)).sum().item() / n
    assert found.zero + found.subnormal + found.normal + found.infinite == pytest.approx(1)


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


def test_tensors_are_taken_signs_and_all():
    assert "50% of the gradients are 0" in make(torch.tensor([[-1.0], [1e-20]])).picture().text


@pytest.mark.parametrize("values", [[], [0.0], [1.0, float("nan")], [float("inf")]])
def test_what_cannot_be_drawn_gets_one_line(values):
    with pytest.raises(CourseError, match="give"):
        make(values)
