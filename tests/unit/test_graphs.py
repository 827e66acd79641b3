import contextlib
import dataclasses

import pytest
import torch

from dltutorial.config import PRESETS, Recipe
from dltutorial.course import benches
from dltutorial.course.bench import table
from dltutorial.errors import CourseError
from dltutorial.models.tiny import NarrowMLP, step_flop
from dltutorial.profile.timing import Timing
from dltutorial.train import launch_overhead
from dltutorial.train.forecasting import squared_error
from dltutorial.train.graphs import WARMUP_STEPS, CudaGraph, GraphedStep
from dltutorial.train.loop import loop
from dltutorial.train.recorded_step import Tape
from dltutorial.train.step import make_optimizer, set_learning_rate, train_step
from dltutorial.train.task import Task

SHAPE = (2, 4, 4)
RECIPE = Recipe(cuda_graph=True, optimizer_impl="fused", learning_rate=1e-2)
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


class Lab:
    """Steps of a narrow network on batches of its own, with a learning rate that changes."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = NarrowMLP(SHAPE, dim=8, depth=2)
        self.optimizer = make_optimizer(self.model, RECIPE)
        self.batches = [(x, x.roll(1, -1)) for x in torch.randn(13, 4, *SHAPE)]

    def step(self, x, y):
        return train_step(self.model, (x, y), squared_error, self.optimizer, clip_norm=1.0)

    def losses(self, step):
        found = []
        for n, batch in enumerate(self.batches):
            set_learning_rate(self.optimizer, 1e-2 / (1 + n))
            found.append(step(*batch))
        return torch.stack(found)


def test_a_graphed_step_equals_the_eager_one_on_every_batch():
    eager, graphed, tape = Lab(), Lab(), Tape()
    assert torch.equal(eager.losses(eager.step), graphed.losses(GraphedStep(graphed.step, "cpu", tape)))
    assert all(map(torch.equal, eager.model.parameters(), graphed.model.parameters()))
    assert (tape.n_captures, tape.n_replays) == (1, 13 - WARMUP_STEPS)


@pytest.mark.parametrize(
    "spoil", [lambda x: x[:3], lambda x: x[:1], lambda x: x.double()], ids=["fewer samples", "one sample", "doubles"]
)
def test_a_batch_of_another_shape_or_type_is_refused(spoil):
    lab = Lab()
    step = GraphedStep(lab.step, "cpu", Tape())
    lab.losses(step)
    x, y = lab.batches[0]
    with pytest.raises(CourseError, match=r"captured for batches \(4, 2, 4, 4\) of torch.float32, this one is"):
        step(spoil(x), y)
    with pytest.raises(CourseError, match="leave incomplete batches out"):
        step(x, spoil(y))


def test_a_step_that_looks_at_its_loss_is_refused_at_capture():
    lab = Lab()
    step = GraphedStep(lambda x, y: lab.step(x, y) * lab.step(x, y).item(), "cpu", Tape())
    for _ in range(2):  # it stays refused
        with pytest.raises(CourseError, match="looks at a value"):
            lab.losses(step)


def test_a_capture_has_scratch_memory_of_its_own(monkeypatch):
    """What torch keeps for all products is cleared before, and what lies in the graph's pool afterwards."""
    order = []

    @contextlib.contextmanager
    def recording(*args, **options):
        order.append("begin")
        yield
        order.append("end")

    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: order.append("clear"), raising=False)
    for name, fake in {"graph": recording, "CUDAGraph": object, "current_stream": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    graph = object.__new__(CudaGraph)
    graph._stream = None
    with graph.capture():
        order.append("step")
    assert order == ["clear", "begin", "step", "end", "clear"]


@no_cuda
@pytest.mark.parametrize("ask", [lambda: GraphedStep(Lab().step, "cpu"), CudaGraph], ids=["step", "graph"])
def test_without_a_gpu_one_line_says_what_to_do(ask):
    with pytest.raises(CourseError, match=r"^cuda_graph needs a CUDA device.*; set cuda_graph=False$"):
        ask()


@no_cuda
def test_a_recipe_with_a_graph_is_refused_before_the_first_step():
    model = torch.nn.Conv2d(1, 1, 1)
    with pytest.raises(CourseError, match="cuda_graph needs a CUDA device"):
        list(loop(Task(model, lambda skip: iter([]), squared_error), Recipe(cuda_graph=True)))


def test_the_narrow_network_is_launch_bound():
    """Its operations at a microsecond each take ten times as long as its products on a slow core (20 GFLOP/s)."""
    model = NarrowMLP(launch_overhead.WINDOW)
    pair = launch_overhead.narrow_pair(dim=16, depth=32)
    assert pair.n_operations > 300
    assert pair.n_operations * 1e-6 > 5 * step_flop(model, batch_size=8) / 20e9


def test_operations_grow_with_depth_and_not_with_width():
    narrow = launch_overhead.narrow_pair
    counts = {(dim, depth): narrow(dim, depth).n_operations for dim in (4, 8) for depth in (1, 2, 3)}
    assert counts[4, 2] == counts[8, 2]
    assert counts[4, 3] - counts[4, 2] == counts[4, 2] - counts[4, 1] > 5


def test_both_ways_of_a_pair_train_alike():
    pair = launch_overhead.narrow_pair(dim=4, depth=1, device="cpu")
    eager = [pair.eager() for _ in range(8)]
    graphed = [pair.graphed() for _ in range(8 - WARMUP_STEPS - 1)]
    assert torch.equal(torch.stack(eager[WARMUP_STEPS + 1 :]), torch.stack(graphed))


def test_a_line_predicts_from_its_two_numbers():
    assert launch_overhead.Line(1e-4, 2e-6).step_s(300) == pytest.approx(7e-4)


def test_overheads_are_the_lines_through_the_quickest_steps_of_other_depths(monkeypatch):
    n_operations = [launch_overhead.narrow_pair(2, depth, device="cpu").n_operations for depth in (1, 2, 4)]

    def timed(variants, repeats, device):
        """What a machine would measure whose every step takes 100 µs and 5 or 2 µs for each operation."""
        price_s = {"eager": 5e-6, "graphed": 2e-6}
        best_s = {key: 1e-4 + price_s[key.split()[0]] * n_operations[int(key.split()[1])] for key in variants}
        return {key: Timing((seconds, 2 * seconds)) for key, seconds in best_s.items()}

    monkeypatch.setattr(launch_overhead, "alternate", timed)
    eager, graphed = launch_overhead.overheads(dim=2, depths=(1, 2, 4), device="cpu")
    assert (eager.fixed_s, eager.per_operation_s) == pytest.approx((1e-4, 5e-6))
    assert (graphed.fixed_s, graphed.per_operation_s) == pytest.approx((1e-4, 2e-6))
    assert eager.step_s(100) - graphed.step_s(100) == pytest.approx(3e-4)


def test_what_recording_saves_comes_off_on_a_cpu_and_is_hidden_on_a_gpu():
    lines = launch_overhead.Line(0, 7e-6), launch_overhead.Line(0, 2e-6)
    assert launch_overhead.replayed_step_s(10e-3, 400, lines, "cpu") == pytest.approx(8e-3)
    assert launch_overhead.replayed_step_s(2.9e-3, 400, lines, "cpu") == pytest.approx(0.9e-3)
    assert launch_overhead.replayed_step_s(10e-3, 400, lines, "cuda") == pytest.approx(10e-3)
    assert launch_overhead.replayed_step_s(2.8e-3, 400, lines, "cuda") == pytest.approx(0.8e-3)


def test_the_bench_predicts_both_ways_of_the_launch_bound_network(one_thread):
    tiny = dataclasses.replace(PRESETS["smoke"], n_lat=8, n_lon=8, dim=8, heads=2, depth=1)
    rows = list(benches.graphs(tiny, 1))
    assert len({row.what for row in rows}) == len(rows) == 6
    assert [row.predicted is not None for row in rows] == [False, False, True, True, False, True]
    assert "gain" in str(table(rows))
