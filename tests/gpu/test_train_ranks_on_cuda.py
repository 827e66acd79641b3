"""Ranks with a GPU each train as one GPU does; ranks that share a GPU do so through gloo, or are told."""

import dataclasses
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dltutorial.config import PRESETS
from dltutorial.engine import run
from dltutorial.engine.forecasting import make_task
from dltutorial.engine.recipe import Recipe
from dltutorial.launch import RankFailed, launch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*ranks share")]
SMALL = dataclasses.replace(
    Recipe.of(PRESETS["smoke"], steps=12, eval_every=6),
    n_channels=3, n_lat=16, n_lon=24, dim=32, depth=2, heads=2, global_batch_size=8, log_every=3, device="cuda",
    track=(),
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    write = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "conftest.py"))["write_tiny_data"]
    return write(tmp_path_factory.mktemp("data") / "tiny")


def losses(data, folder, knobs):
    recipe = dataclasses.replace(SMALL, **knobs)
    return [seen.loss for seen in run.train(make_task(recipe, data), recipe, folder, progress=False)]


KNOBS = [{}, {"loader": "best"}, {"precision": "fp16"}, {"compile": "default"}, {"checkpoint_activations": True}]
KNOBS += [{"shard": stage} for stage in ("optimizer", "gradients", "full")]
CUTS = {"tensor", "context", "pipeline"}
KNOBS += [{"tensor": 2}, {"context": 2}, {"pipeline": 2, "accumulate": 2}]


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_two_ranks_have_the_losses_of_one(data, tmp_path, send_whole, knobs):
    """Over NCCL with two GPUs, over gloo with one that they share, where what gloo cannot do is refused."""
    if torch.cuda.device_count() < 2 and (CUTS & knobs.keys() or knobs.get("shard") in ("gradients", "full")):
        with pytest.raises(RankFailed, match="ranks that share a GPU cannot cut"):
            launch(losses, 2, data, tmp_path / "two", knobs, timeout_s=300)
        return
    alone = {name: value for name, value in knobs.items() if name not in ("shard", "tensor", "context", "pipeline")}
    one = losses(data, tmp_path / "one", alone)
    first, second = launch(losses, 2, data, tmp_path / "two", knobs, timeout_s=300)
    assert first == second == pytest.approx(one, rel=2e-2 if "precision" in knobs else 1e-3)


def test_ranks_that_share_a_gpu_are_told_in_one_line(data, tmp_path):
    n = torch.cuda.device_count() + 1
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), "-m", "dltutorial", "train"]
    env = os.environ | {"DLTUTORIAL_RUNS": str(tmp_path)}
    command += ["--name", "r", "--data", str(data), "--global-batch-size", str(2 * n)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode != 0
    (line,) = {line for line in done.stderr.splitlines() if "would share one GPU" in line}
    assert "start as many ranks as there are GPUs, or --device cpu" in line
