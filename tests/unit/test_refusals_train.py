"""What training refuses, each in one clear line. What needs a run's folder is in test_run and test_checkpoint."""

import dataclasses

import pytest
import torch
from torch import nn

from dltutorial.course.checks.rehearsal import Tape
from dltutorial.engine import forecasting, run
from dltutorial.engine.compiling import compiled
from dltutorial.engine.forecasting import row_weights, squared_error
from dltutorial.engine.graphs import CudaGraph, GraphedStep
from dltutorial.engine.loop import loop
from dltutorial.engine.mesh import Mesh
from dltutorial.engine.precision import Precision
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.task import Task
from dltutorial.errors import CourseError, RecipeError

SMALL = Recipe(n_lat=8, n_lon=8, n_channels=1, dim=8, heads=2, depth=1, global_batch_size=2, steps=20, log_every=5,
               eval_every=0, device="cpu")  # fmt: skip


@pytest.fixture(autouse=True)
def neither_gpu_nor_compiler(monkeypatch):
    """As on a bare laptop."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)


def train(batches=(), **knobs):
    recipe = dataclasses.replace(SMALL, **knobs)
    return list(loop(Task(forecasting.make_vit(recipe), lambda skip: iter(batches), squared_error), recipe))


def graphed(*batches):
    """One step after another, captured for the first batch."""
    weight = torch.zeros(())
    step = GraphedStep(lambda x, y: weight.add_((x + y).mean()), Tape())
    for batch in [(torch.ones(4, 2), torch.ones(4, 2))] * 4 + list(batches):
        step(*batch)


def on_two(**knobs):
    """Of two ranks; alone it can be."""
    recipe = dataclasses.replace(SMALL, **knobs)
    run.check_ranks(recipe, 1)
    run.check_ranks(recipe, 2)


def on(n, **knobs):
    """Of n ranks."""
    run.check_ranks(dataclasses.replace(SMALL, global_batch_size=8, **knobs), n)


def mesh_of(model):
    """The course's transformer alone can be cut."""
    Mesh(model, dataclasses.replace(SMALL, tensor=2))


def look(how):
    x = torch.ones(3)
    with Tape().capture():
        how(x * 2)


X = torch.ones(2, 1, 8, 8)
GRAPH, LOOKS = "cuda_graph needs a CUDA device", "move .item(), print(tensor) and `if tensor:` out"
OTHER_BATCH = "captured for batches (4, 2) of torch.float32, this one is"
REFUSALS = [
    ("a loss that is not finite", lambda: train([(X, X * torch.nan)] * 20), CourseError, "the loss is nan after 5"),
    ("batches that run out", lambda: train([(X, X)] * 7), CourseError, "no batch after 7 of 20 updates"),
    ("an unknown planet", lambda: row_weights(8, "torus"), ValueError, "torus"),
    ("CUDA in vain", lambda: forecasting.build_model(Recipe(device="cuda")), CourseError, "device=auto"),
    ("tf32 on a CPU", lambda: Precision("tf32", "cpu"), CourseError, "precision tf32 needs an NVIDIA GPU of 2020"),
    ("no compiler", lambda: compiled(nn.Linear(1, 1)), CourseError, "compile=default needs a C++ compiler (g++), and"),
    ("a CUDA graph on a CPU", lambda: CudaGraph("cpu"), CourseError, GRAPH),
    ("a run as a graph on a CPU", lambda: train(cuda_graph=True), CourseError, GRAPH),
    ("fewer samples in a graph", lambda: graphed((torch.ones(3, 2), torch.ones(4, 2))), CourseError, OTHER_BATCH),
    ("an empty tape", lambda: Tape().replay(), CourseError, "the tape is empty: nothing was captured; run a step"),
    ("a value read in a capture", lambda: look(lambda x: x.sum().item()), CourseError, "looks at a value (_local"),
    ("a branch in a capture", lambda: look(lambda x: bool(x.sum() > 0)), CourseError, LOOKS),
    ("a batch that 2 ranks cannot share", lambda: on_two(global_batch_size=7), RecipeError, "take 6 or 8, or start"),
    ("a graph on 2 ranks", lambda: on_two(cuda_graph=True), RecipeError, "cuda_graph works on one rank only"),
    ("2 ranks a sample, of 3", lambda: on(3, tensor=2), RecipeError, "a multiple of 2 ranks, there are 3; start"),
    ("heads for 4 ranks", lambda: on(4, tensor=4), RecipeError, "tensor=4 does not divide heads=2; take a number that"),
    ("a token for 2 ranks", lambda: on(2, context=2), RecipeError, "context=2 ranks for 1 tokens; take fewer"),
    ("8 samples, 3 groups", lambda: on(6, tensor=2), RecipeError, "equally by 3 groups of ranks (tensor=2, con"),
    ("late, in shards", lambda: on_two(gradient_lag=1, shard="full"), RecipeError, "not work with shard=full; leave"),
    (
        "our DDP, with shards",
        lambda: on(2, shard="full", ddp="bucketed"),
        RecipeError,
        "with tensor=1, context=1, shard=full; take torch",
    ),
    (
        "fp16 in shards",
        lambda: on(2, shard="gradients", precision="fp16"),
        RecipeError,
        "precision=fp16 does not work with",
    ),
    ("LAMB in shards", lambda: on(2, shard="full", optimizer="lamb"), RecipeError, "optimizer=lamb does not work with"),
    ("no such shards", lambda: on(2, shard="some"), RecipeError, "must be one of none, optimizer, gradients, full"),
    ("blocks of another model", lambda: mesh_of(nn.Linear(2, 2)), CourseError, "Linear has no blocks to cut; take ten"),
    (
        "4 stages of 2 blocks",
        lambda: on(4, pipeline=4, depth=2, accumulate=4),
        RecipeError,
        "stages for depth=2 blocks; t",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_it_is_refused_in_one_line(call, error, words):
    with pytest.raises(error) as refused:
        call()
    (line,) = str(refused.value).splitlines()
    assert words in line
