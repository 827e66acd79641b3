"""``tune.py`` and ``tune_ray.py`` as chapter 20 writes them."""

import os
import subprocess
import sys

import pytest

from dltutorial.course import scripts

LINE = ("--trials", "6", "--epochs", "9", "--batch", "2", "--vit", "4", "8", "1", "1")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the scripts, in which the test runs them."""
    monkeypatch.chdir(tmp_path)
    scripts.take("vit.py", "pairs.py", "train.py", "tune.py", "tune_ray.py")
    return tmp_path


def start(script, data, *options):
    line = [sys.executable, script, str(data), *LINE, *options]
    return subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_without_ray_one_line_says_how_to_get_it(tiny_data, folder):
    (folder / "ray.py").write_text("raise ImportError")
    worker = start("tune_ray.py", tiny_data)
    output, _ = worker.communicate(timeout=240)
    assert worker.returncode == 1
    assert output.splitlines() == ["Ray is not installed: .venv/bin/pip install -e '.[tune]'"]


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_ray_leads_a_study(tiny_data, folder, scheduler):
    worker = start("tune_ray.py", tiny_data, "--scheduler", scheduler, "--out", "study")
    output, _ = worker.communicate(timeout=280)
    assert worker.returncode == 0, output
    assert "best: " in output
