import os
import subprocess
import sys

import pytest
import torch
from torch._inductor import config as settings

from dltutorial import machine
from dltutorial.step import compiling


@pytest.fixture(autouse=True)
def own_settings(monkeypatch):
    """What ``prepare`` changes for a process is put back."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    torch.compiler.reset()
    with settings.patch(compile_threads=settings.compile_threads):
        yield


def test_missing_compilers_are_reported_without_importing_torch():
    code = "import sys; from dltutorial.step import compiling; print(compiling.missing('cpu'), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


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
