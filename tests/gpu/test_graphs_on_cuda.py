"""The captured step of chapter 06 computes what the eager step computes."""

import sys

import pytest
import torch

from dltutorial.course import scripts

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_captured_steps_have_the_losses_of_eager_steps_to_the_bit(dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    scripts.take("vit.py", "graph_step.py")
    from graph_step import capture, make_step
    from vit import ViT

    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, 1, 5, 32, 64, generator=generator).to("cuda", dtype) for _ in range(40)]
    rate = torch.tensor(1e-3, device="cuda")
    losses = {}
    for name in ("eager", "captured"):
        torch.manual_seed(0)
        step = make_step(ViT((5, 32, 64), 16, 16, 16, 2).to("cuda", dtype), rate)
        if name == "captured":
            step = capture(step, *batches[0])
        else:
            for _ in range(3):  # as many steps as in the warm-up
                step(*batches[0])
        losses[name] = torch.stack([step(x, y) for x, y in batches])
    for module in ("graph_step", "vit"):
        sys.modules.pop(module)
    assert losses["captured"].unique().numel() > 1
    assert torch.equal(losses["captured"], losses["eager"])
