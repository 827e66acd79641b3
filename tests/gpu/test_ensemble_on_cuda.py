import pytest
import torch

from dltutorial.convergence import ensemble
from dltutorial.convergence.ensemble import Replica
from dltutorial.data import lenses, surveys

pytestmark = pytest.mark.gpu


def test_images_of_a_gpu_are_those_of_a_cpu():
    (here, labels), (there, same) = (lenses.simulate(600, device=device, progress=False) for device in ("cpu", "cuda"))
    assert torch.equal(labels, same) and there.device.type == "cpu"
    torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-3)


def test_replicas_train_on_a_gpu_as_on_a_cpu_and_the_diverged_leave(tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    survey = surveys.lenses(train=600, valid=100, test=100, progress=False)
    replicas = [Replica(rate, seed) for rate in (2**-6, 1e30, 2**-5) for seed in (0, 1)]
    options = {"evaluate_every": 5, "keep_steps": (0, 10)}
    cpu, cuda = (ensemble.train(survey, replicas, 32, 20, device=device, **options) for device in ("cpu", "cuda"))
    assert cuda.diverged_R.tolist() == [False, False, True, True, False, False]
    torch.testing.assert_close(cpu.train_loss_RE, cuda.train_loss_RE, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert all(value.device.type == "cpu" for value in (cuda.steps, cuda.valid_accuracy_RE))
    assert next(cuda.replica(0).parameters()).device.type == "cuda"
    assert next(cuda.after(10, 0).parameters()).device.type == "cuda"
    torch.testing.assert_close(
        cpu.accuracy(survey.x_test, survey.y_test), cuda.accuracy(survey.x_test, survey.y_test), atol=0.03, rtol=0,
        equal_nan=True,
    )  # fmt: skip
