"""``make gpu`` runs on a machine without a GPU, with tiny sizes, up to its last part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROVE = Path(__file__).parents[1] / "gpu" / "prove.py"


def run(*words, **environment):
    variables = {**os.environ, **environment}
    return subprocess.run([sys.executable, str(PROVE), *words], env=variables, capture_output=True, text=True)


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_each_part_of_a_dry_run_finishes_and_is_recorded(tmp_path):
    out = tmp_path / "out"
    finished = run("--dry-run", "--out", str(out), DLTUTORIAL_RUNS=str(tmp_path / "runs"))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    parts = json.loads((out / "measured" / "parts.json").read_text(encoding="utf-8"))["parts"]
    assert {part["part"]: part["status"] for part in parts} == dict.fromkeys(
        ("tests", "data", "traces", "loader", "collectives", "chapter"), 0
    )
    for name in ("traces", "loader", "collectives"):
        recording = json.loads((out / "measured" / f"{name}.json").read_text(encoding="utf-8"))
        assert all(row["median"] > 0 for row in recording["rows"])
        assert recording["machine"] and recording["versions"]["torch"]
    assert json.loads((out / "measured" / "chapter.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.ci
@pytest.mark.timeout(600)
def test_the_collectives_of_several_gpus_run_with_gloo(tmp_path):
    finished = run("--several", "--dry-run", "--only", "collectives", "--out", str(tmp_path / "out"))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    recording = json.loads((tmp_path / "out" / "measured" / "collectives.json").read_text(encoding="utf-8"))
    assert {row["more"]["ranks"] for row in recording["rows"]} == {"2"}


def test_a_part_that_takes_too_long_is_ended_and_counts_as_not_finished(tmp_path):
    finished = run("--dry-run", "--only", "data", "--minutes", "0", "--out", str(tmp_path / "out"))
    assert finished.returncode == 1
    assert "reached its limit" in finished.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_one_line_says_what_to_do(tmp_path):
    finished = run("--out", str(tmp_path / "out"))
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1 and "--dry-run" in finished.stderr
