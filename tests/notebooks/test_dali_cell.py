"""The part for CPUs of NVIDIA's loader in the further notebook of chapter 03 gives the same values as torch."""

import json
from pathlib import Path

import pytest
import torch

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "further" / "03_feed_the_device_further.ipynb"


@pytest.mark.nightly
@pytest.mark.dali
def test_dali_normalises_as_torch_does():
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]]
    (cell,) = (cell for cell in cells if "from nvidia.dali" in cell)
    raw_B2CHW = torch.randn(4, 2, 3, 8, 16, generator=torch.Generator().manual_seed(0))
    mean = torch.tensor([1.0, -2.0, 3.0]).reshape(1, 3, 1, 1)
    std = torch.tensor([4.0, 5.0, 0.5]).reshape(1, 3, 1, 1)
    names = {"raw_B2CHW": raw_B2CHW, "mean": mean, "std": std, "batch_size": 4, "torch": torch}
    exec(compile(cell, "dali", "exec"), names)
    torch.testing.assert_close(names["pair"], (raw_B2CHW[0] - mean[0]) / std[0])
