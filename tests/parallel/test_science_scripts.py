"""The training scripts of chapters 21 and 22 compute on two ranks what they compute on one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dltutorial.course import scripts
from dltutorial.science import boxes
from dltutorial.science.building import write_arrays

pytestmark = pytest.mark.ci
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture
def torchrun(tmp_path, monkeypatch):
    """Write the files of a chapter, and run one of them on some ranks. It returns what the file printed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(chapter, n_ranks, *arguments):
        for notebook in NOTEBOOKS.rglob(f"{chapter}_*.ipynb"):  # the chapter and its further notebook
            for name, text in scripts.written(notebook).items():
                (tmp_path / name).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_ranks}"]
        done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


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


def test_rare_classes_train_on_two_ranks_as_on_one(tmp_path, torchrun):
    write_climate(tmp_path / "data")
    options = ["--data=data", "--updates=4", "--batch=4"]
    losses = [torchrun(21, n, "train_rare.py", *options).split()[-1] for n in (1, 2)]
    assert float(losses[1]) == pytest.approx(float(losses[0]), rel=1e-4)


def test_slabs_of_boxes_train_on_two_ranks_as_whole_boxes_on_one(tmp_path, torchrun):
    (tmp_path / "data").mkdir()
    boxes.write_boxes(tmp_path / "data" / "train", 8, 8, seed=0)
    options = ["--data=data", "--out=boxes.pt", "--steps=3", "--batch=4", "--layers=2"]
    one, two = (torchrun(22, n, "train_boxes.py", *options).split()[1:] for n in (1, 2))
    assert len(one) == 3
    assert list(map(float, two)) == pytest.approx(list(map(float, one)), rel=1e-4)


def test_simclr_trains_an_encoder_on_two_ranks(tmp_path, torchrun):
    images = np.random.default_rng(0).standard_normal((40, 1, 16, 16), np.float32)
    write_arrays(tmp_path / "train.h5", {"images": images})
    torchrun(22, 2, "simclr.py", "--data=.", "--steps=2", "--batch=8", "--out=encoder.pt")
    assert (tmp_path / "encoder.pt").is_file()
