"""Without Slurm, torchrun starts the ranks of the trainer."""

import os
import subprocess
import sys

import pytest

from dltutorial import paths


@pytest.mark.ci
def test_torchrun_starts_the_trainer_on_two_ranks():
    words = ["--standalone", "--nproc-per-node=2", "-m", "dltutorial.train", "--preset", "smoke"]
    words += ["--global-batch-size", "4", "--steps", "6", "--track"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (run,) = paths.runs_dir().glob("train-*")
    assert (run / "weights.pt").exists()
    assert done.stdout.count("step 6: loss") == 1  # rank 0 alone prints
