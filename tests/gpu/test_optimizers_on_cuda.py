"""LARS and LAMB on a GPU: the same weights as on the CPU, and no wait for the device."""

import pytest
import torch
from torch import nn

from dltutorial.optim.lamb import LAMB
from dltutorial.optim.lars import LARS
from dltutorial.optim.layerwise import without_adaptation

pytestmark = pytest.mark.gpu

OURS = {
    "LARS": (LARS, {"lr": 0.5, "trust_coefficient": 0.05, "weight_decay": 0.1}),
    "LAMB": (LAMB, {"lr": 0.01, "weight_decay": 0.1}),
}


def net(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double().to(device)


def gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device)


@pytest.mark.parametrize("name", OURS)
def test_weights_are_those_of_the_cpu(name):
    kind, options = OURS[name]
    found = {}
    for device in ("cpu", "cuda"):
        model = net(device)
        optimizer = kind(without_adaptation(model), **options)
        for step in range(20):
            gradients(model, step)
            optimizer.step()
        found[device] = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_a_step_never_waits_for_the_device(name, tensor_rate):
    kind, options = OURS[name]
    if tensor_rate:
        options = {**options, "lr": torch.tensor(options["lr"], device="cuda")}
    model = net("cuda")
    optimizer = kind(without_adaptation(model), **options)
    gradients(model, 0)
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
