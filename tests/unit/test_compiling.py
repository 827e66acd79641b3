import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._inductor import config as settings

from dltutorial import machine
from dltutorial.engine.forecasting import squared_error
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.step import make_optimizer, make_step
from dltutorial.step import compiling

can_compile = pytest.mark.skipif(compiling.missing("cpu") is not None, reason="no C++ compiler here")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch):
    """What ``prepare`` changes for a process is put back."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    torch.compiler.reset()
    with settings.patch(compile_threads=settings.compile_threads):
        yield


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def test_what_is_missing_is_told_without_torch():
    code = "import sys; from dltutorial.step import compiling; print(compiling.missing('cpu'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


def test_off_is_the_model_itself():
    model = perceptron()
    assert compiling.compiled(model, "off") is model


def test_a_gpu_needs_triton_and_a_c_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "Triton" in compiling.missing("cuda")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert compiling.missing("cuda") == "a C compiler (gcc)"


def test_the_cache_lies_in_the_course_s_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    compiling.prepare()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "dltutorial" / "compiled")
    assert settings.compile_threads == 1


@can_compile
@pytest.mark.ci
def test_a_compiled_step_trains_as_the_plain_one():
    def losses(mode):
        recipe = Recipe(compile=mode, learning_rate=1e-2)
        model = perceptron()
        step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
        return [step(x, 2 * x).item() for _ in range(5)]

    assert losses("default") == pytest.approx(losses("off"), rel=1e-4)
