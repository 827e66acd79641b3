import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dltutorial import machine
from dltutorial.step.precision import Precision, units_for

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items())
def test_products_take_the_precision_and_the_loss_stays_float32(name, dtype):
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with Precision(name).autocast():
        y = layer(x)
        loss = F.mse_loss(y, x)
    assert (y.dtype, loss.dtype) == (dtype, torch.float32)
    loss.backward()
    assert {p.dtype for p in layer.parameters()} == {p.grad.dtype for p in layer.parameters()} == {torch.float32}


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_leaves_weights_and_averages_alone(fused):
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=fused)
    precision, before = Precision("fp16"), layer.weight.detach().clone()
    for factor, moves in ((math.inf, False), (1.0, True)):
        optimizer.zero_grad()
        precision.scaled((layer.weight * factor).sum() + layer.bias.sum()).backward()
        precision.update(optimizer, clip_norm=1.0)
        assert torch.equal(layer.weight, before) is not moves
    assert int(optimizer.state[layer.weight]["step"]) == 1


def test_gradients_are_clipped_after_they_are_unscaled():
    def moved(name):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        optimizer, precision = torch.optim.SGD(layer.parameters(), lr=1.0), Precision(name)
        before = layer.weight.detach().clone()
        precision.scaled(10 * layer.weight.sum()).backward()
        precision.update(optimizer, clip_norm=0.5)
        return layer.weight.detach() - before

    assert moved("fp32").norm().item() == pytest.approx(0.5, rel=1e-4)
    assert torch.allclose(moved("fp16"), moved("fp32"))


@pytest.mark.parametrize(("name", "wanted"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")])
def test_float32_products_are_set_and_put_back(monkeypatch, name, wanted):
    """The flags can be set without a GPU; only the device is pretended."""
    monkeypatch.setattr("dltutorial.step.precision.units_for", lambda name: ("tf32 tensor cores",))
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with Precision(name, "cuda").products() if name != "fp16" else None:
        assert torch.get_float32_matmul_precision() == wanted
        assert torch.backends.cudnn.allow_tf32 is (name == "tf32")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


@pytest.mark.parametrize(
    ("flags", "bf16", "fp16"),
    [
        (None, None, None),
        (("avx2", "avx512f", "avx512_vnni"), (), ()),
        (("avx512f", "avx512_bf16", "amx_bf16"), ("avx512_bf16", "amx_bf16"), ()),
        (("asimd", "asimdhp", "bf16"), ("bf16",), ("asimdhp",)),
    ],
)
def test_the_flags_of_a_cpu_tell_its_units(monkeypatch, flags, bf16, fp16):
    monkeypatch.setattr(machine, "accelerators", tuple)
    monkeypatch.setattr(machine, "cpu_units", lambda: flags)
    assert (units_for("bf16"), units_for("fp16")) == (bf16, fp16)


@pytest.mark.parametrize("channels", [3, 8, 20])
def test_patches_in_16_bits_are_those_of_float32_whatever_the_processor(channels):
    """On processors with AMX torch 2.13's own are not, for 8 and 20 channels."""
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 32, 8, stride=8)
    x, plain = torch.randn(2, channels, 32, 32), copy.deepcopy(layer)
    precision = Precision("bf16", "cpu")
    precision.spare(layer)
    with precision.autocast():
        found = layer(x)
    torch.testing.assert_close(found.float(), plain(x), rtol=0.05, atol=0.05)
