"""The capstone's attempts on GPUs: every loader and precision arrives, ranks have a GPU each, energy is measured."""

import dataclasses
import shutil

import pytest
import torch

from dltutorial.convergence import energy
from dltutorial.course.checks import attempts as attempt
from dltutorial.course.checks.attempts import SolutionRecipe, SolutionTask

pytestmark = pytest.mark.gpu
TASK = SolutionTask(target=0.7, train=600, valid=200, widths=(16,))
QUICK = SolutionRecipe(loader="staged", batch_size=100, learning_rate=2**-3, steps=60, eval_every=5)


@pytest.fixture(autouse=True)
def _own_data(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))


@pytest.mark.parametrize(
    "knobs",
    [
        *({"loader": name} for name in ("one by one", "batched")),
        *({"precision": name} for name in ("bf16", "fp16")),
        {"optimizer": "adamw", "learning_rate": 2**-7},
    ],
)
def test_a_recipe_arrives_on_a_gpu(knobs):
    (found,) = attempt.attempts(dataclasses.replace(QUICK, **knobs), TASK, [0])
    assert found.reached


def test_energy_of_work_on_a_gpu_is_measured():
    if not shutil.which("nvidia-smi"):
        pytest.skip("no nvidia-smi")
    with energy.meter() as found:
        x = torch.randn(4096, 4096, device="cuda")
        for _ in range(300):
            x = x @ x / 64
        torch.cuda.synchronize()
    assert found.energy.measured or found.energy.joules is None
