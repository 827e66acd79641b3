"""What training refuses, each in one clear line. What needs a run's folder: test_run, test_checkpoint."""

import dataclasses

import pytest
import torch
from torch import nn

from dltutorial.config import Recipe
from dltutorial.course.checks.rehearsal import Tape
from dltutorial.errors import CourseError, RecipeError
from dltutorial.train import forecasting, ladder, profiled, run
from dltutorial.train.compiling import compiled
from dltutorial.train.forecasting import row_weights, squared_error
from dltutorial.train.graphs import CudaGraph, GraphedStep
from dltutorial.train.loop import loop
from dltutorial.train.mesh import Mesh
from dltutorial.train.precision import Precision
from dltutorial.train.task import Task

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
    ("a run in tf32 on a CPU", lambda: train(precision="tf32"), CourseError, "precision tf32 needs an NVIDIA GPU"),
    ("no compiler", lambda: compiled(nn.Linear(1, 1)), CourseError, "compile=default needs a C++ compiler (g++), and"),
    ("a run without a compiler", lambda: train(compile="default"), CourseError, "and there is none; install it, or"),
    ("a CUDA graph on a CPU", lambda: CudaGraph("cpu"), CourseError, GRAPH),
    ("a CUDA graph without a GPU", CudaGraph, CourseError, GRAPH),
    ("a run as a graph on a CPU", lambda: train(cuda_graph=True), CourseError, GRAPH),
    (
        "a graph in fp16 on a CPU",
        lambda: train(cuda_graph=True, precision="fp16", optimizer_impl="fused"),
        CourseError,
        GRAPH,
    ),
    ("fewer samples in a graph", lambda: graphed((torch.ones(3, 2), torch.ones(4, 2))), CourseError, OTHER_BATCH),
    ("one sample in a graph", lambda: graphed((torch.ones(4, 2), torch.ones(1, 2))), CourseError, OTHER_BATCH),
    ("doubles in a graph", lambda: graphed((torch.ones(4, 2).double(), torch.ones(4, 2))), CourseError, OTHER_BATCH),
    ("an empty tape", lambda: Tape().replay(), CourseError, "the tape is empty: nothing was captured; run a step"),
    ("a value read in a capture", lambda: look(lambda x: x.sum().item()), CourseError, "looks at a value (_local"),
    ("a branch in a capture", lambda: look(lambda x: bool(x.sum() > 0)), CourseError, LOOKS),
    ("a shape that depends on values", lambda: look(torch.nonzero), CourseError, "looks at a value (nonzero)"),
    ("a batch that 2 ranks cannot share", lambda: on_two(global_batch_size=7), RecipeError, "take 6 or 8, or start"),
    ("one sample for 2 ranks", lambda: on_two(global_batch_size=1), RecipeError, "take 2, or start another number"),
    ("a graph on 2 ranks", lambda: on_two(cuda_graph=True), RecipeError, "cuda_graph works on one rank only"),
    ("graphs of torch's on 2 ranks", lambda: on_two(compile="reduce-overhead"), RecipeError, "on one rank only"),
    ("compiled, in our DDP", lambda: on_two(compile="default", ddp="naive"), RecipeError, "torch's DDP only"),
    ("2 ranks a sample, of 3", lambda: on(3, tensor=2), RecipeError, "a multiple of 2 ranks, there are 3; start"),
    ("4 ranks a sample, of 2", lambda: on(2, tensor=2, context=2), RecipeError, "take a multiple of 4 ranks"),
    ("2 ranks a sample, alone", lambda: on(1, context=2), RecipeError, "tensor=1, context=2 take a multiple of 2"),
    ("heads for 4 ranks", lambda: on(4, tensor=4), RecipeError, "tensor=4 does not divide heads=2; take a number that"),
    ("a token for 2 ranks", lambda: on(2, context=2), RecipeError, "context=2 ranks for 1 tokens; take fewer"),
    ("8 samples, 3 groups", lambda: on(6, tensor=2), RecipeError, "equally by 3 groups of ranks (tensor=2, con"),
    ("late, in shards", lambda: on_two(gradient_lag=1, shard="full"), RecipeError, "not work with shard=full; leave"),
    ("late, in fp16", lambda: on_two(gradient_lag=1, precision="fp16"), RecipeError, "work with precision=fp16; leave"),
    ("late, in a graph", lambda: on(1, gradient_lag=1, cuda_graph=True), RecipeError, "work with cuda_graph=True; le"),
    (
        "late, cut",
        lambda: on(2, gradient_lag=1, tensor=2, ddp="naive"),
        RecipeError,
        "with tensor=2, ddp=naive; leave tensor and ddp out",
    ),
    ("late by two", lambda: on_two(gradient_lag=2), RecipeError, "gradient_lag must be 0 or 1"),
    (
        "our DDP, with tensor",
        lambda: on(2, tensor=2, ddp="naive"),
        RecipeError,
        "ddp=naive does not work with tensor=2",
    ),
    (
        "our DDP, with shards",
        lambda: on(2, shard="full", ddp="bucketed"),
        RecipeError,
        "with tensor=1, context=1, shard=full; take torch",
    ),
    ("compiled shards", lambda: on(2, shard="full", compile="default"), RecipeError, "compile=default does not work"),
    ("compiled heads", lambda: on(2, tensor=2, compile="default"), RecipeError, "compile=default does not work with t"),
    ("a graph of shards", lambda: on(2, shard="full", cuda_graph=True), RecipeError, "cuda_graph works on one rank"),
    (
        "fp16 in shards",
        lambda: on(2, shard="gradients", precision="fp16"),
        RecipeError,
        "precision=fp16 does not work with",
    ),
    (
        "fp16 by heads",
        lambda: on(2, tensor=2, precision="fp16"),
        RecipeError,
        "shard=none; take fp32 or tf32 or bf16, or",
    ),
    ("LAMB in shards", lambda: on(2, shard="full", optimizer="lamb"), RecipeError, "optimizer=lamb does not work with"),
    (
        "LARS by heads",
        lambda: on(2, tensor=2, optimizer="lars"),
        RecipeError,
        "optimizer=lars does not work with tensor=2",
    ),
    ("no such shards", lambda: on(2, shard="some"), RecipeError, "must be one of none, optimizer, gradients, full"),
    ("no ranks for heads", lambda: on(2, tensor=0), RecipeError, "tensor=0, but tensor must be at least 1"),
    ("blocks of another model", lambda: mesh_of(nn.Linear(2, 2)), CourseError, "Linear has no blocks to cut; take ten"),
    (
        "4 stages of 2 blocks",
        lambda: on(4, pipeline=4, depth=2, accumulate=4),
        RecipeError,
        "stages for depth=2 blocks; t",
    ),
    (
        "a pipeline of one part",
        lambda: on(2, pipeline=2, depth=2),
        RecipeError,
        "accumulate=1 parts of a batch do not fill a p",
    ),
    (
        "parts that are not equal",
        lambda: on(2, pipeline=2, depth=2, accumulate=3),
        RecipeError,
        "2, one for each stage, that di",
    ),
    (
        "2 stages on 3 ranks",
        lambda: on(3, pipeline=2, depth=2, accumulate=2),
        RecipeError,
        "pipeline=2 take a multiple of 2 r",
    ),
    (
        "fp16 in stages",
        lambda: on(2, pipeline=2, depth=2, accumulate=2, precision="fp16"),
        RecipeError,
        "precision=fp16 does n",
    ),
    ("a race of no rounds", lambda: ladder.compare({}, {}, rounds=0), CourseError, "take at least one round"),
]


@pytest.mark.parametrize(("call", "error", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_it_is_refused_in_one_line(call, error, words):
    with pytest.raises(error) as refused:
        call()
    (line,) = str(refused.value).splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("words", "told"),
    [("--preset nonsense", "preset 'nonsense'"), ("--loader best --workers 1", "recipe: workers=1")],
)
def test_a_profiled_run_is_refused_in_one_line(capsys, words, told):
    assert profiled.main(["--preset", "smoke", "--trace", "t.json", *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dltutorial: {told}")


@pytest.mark.parametrize(
    "knobs",
    [{"shard": kind} for kind in ("none", "optimizer", "gradients", "full")]
    + [{"shard": "optimizer", "optimizer": "lamb"}, {"context": 2, "n_lat": 16, "precision": "fp16"}, {"tensor": 2}]
    + [{"pipeline": 2, "depth": 2, "accumulate": 4, "optimizer": "lamb"}]
    + [{"shard": "full", "ddp": "torch"}, {"shard": "optimizer", "precision": "fp16"}],
)
def test_what_holds_on_ranks_is_not_refused(knobs):
    on(2, **knobs)
