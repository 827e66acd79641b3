"""The training script of chapter 21 computes on two ranks what it computes on one."""

import subprocess
import sys

import numpy as np
import pytest

from dltutorial.course import scripts
from dltutorial.science.arrays import write_arrays

pytestmark = pytest.mark.ci


def write_climate(folder):
    """Four samples with the same statistics, so that each order of them gives the same losses."""
    label_HW = np.zeros((16, 16), np.uint8)
    label_HW[:4], label_HW[8:10] = 1, 2
    x_HWC = np.random.default_rng(0).standard_normal((16, 16, 5), np.float32) + label_HW[..., None]
    (folder / "train").mkdir(parents=True)
    for number in range(4):
        sample = {"climate/data": x_HWC, "climate/labels_0": label_HW}
        write_arrays(folder / "train" / f"data-{number}.h5", sample)
    write_arrays(folder / "stats.h5", {"climate/minval": np.full(5, -4.0), "climate/maxval": np.full(5, 6.0)})


def train(n_ranks):
    """The loss that the script prints last."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}"]
    command += ["train_rare.py", "--data=data", "--updates=4", "--batch=4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def test_rare_classes_train_on_two_ranks_as_on_one(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    write_climate(tmp_path / "data")
    scripts.take("rare.py", "rare_training.py", "storm_net.py", "train_rare.py")
    assert train(2) == pytest.approx(train(1), rel=1e-4)
