"""The part for CPUs of NVIDIA's loader in chapter 03 gives the same batches as torch."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

CHAPTER = Path(__file__).parents[2] / "notebooks" / "03_feed_the_device.ipynb"


@pytest.mark.nightly
@pytest.mark.dali
@pytest.mark.parametrize("shift", [0, 3])
def test_dali_normalises_as_torch_does(shift):
    cells = ["".join(cell["source"]) for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]]
    (cell,) = (ast.parse(cell) for cell in cells if "nvidia.dali" in cell)
    cell.body = [part for part in cell.body if isinstance(part, ast.Try)]
    raw_B2CHW = torch.randn(4, 2, 3, 8, 16, generator=torch.Generator().manual_seed(0))
    means, stds = np.float32([1, -2, 3]).reshape(1, 3, 1, 1), np.float32([4, 5, 0.5]).reshape(1, 3, 1, 1)
    mine = torch.roll((raw_B2CHW - torch.from_numpy(means)) / torch.from_numpy(stds), shift, -1)
    claims = []
    names = {
        "pairs": SimpleNamespace(raw=lambda index: raw_B2CHW[index]), "keys": [(index, shift) for index in range(4)],
        "split": SimpleNamespace(means_1C11=means, stds_1C11=stds), "mine": mine, "batch_size": 4, "torch": torch,
        "claim": lambda what, holds, evidence: claims.append(holds),
    }  # fmt: skip
    exec(compile(cell, "dali", "exec"), names)
    assert claims == [True]
    names["mine"] = mine + 1
    exec(compile(cell, "dali", "exec"), names)
    assert claims == [True, False]
