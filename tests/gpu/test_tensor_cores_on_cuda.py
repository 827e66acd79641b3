"""Functions of chapter 04's further notebook that read from a trace whether tensor cores ran."""

import pytest
import torch
from chapter_code import written
from torch.nn import functional as F

from dltutorial import machine
from dltutorial.models.vit import ViT
from dltutorial.profile import trace

pytestmark = pytest.mark.gpu
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("precision", DTYPES)
def test_tensor_cores_run_where_the_precision_says(precision, monkeypatch):
    if precision in ("tf32", "bf16") and precision not in (machine.accelerators()[0].tensor_core_dtypes or ()):
        pytest.skip(f"this GPU has no units for {precision}")
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision == "tf32")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision == "tf32")
    model = ViT(5, 32, 64, dim=256, depth=2, heads=2).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    x_BCHW = torch.randn(8, 5, 32, 64, device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", DTYPES[precision], enabled=precision in ("bf16", "fp16")):
            loss = F.mse_loss(model(x_BCHW), x_BCHW.roll(1, -1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    chapter = written("further/04", "on_tensor_cores", "products", "tensor_core_share")
    share = chapter["tensor_core_share"](chapter["products"](trace.take(step, steps=2)))
    if precision == "fp32":  # fused attention may use TF32 units in three passes; the large products do not
        assert share < 0.5
    else:
        assert share > 0.5  # on an H200 0.64 with tf32: attention and the narrow patches run elsewhere
