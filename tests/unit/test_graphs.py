import pytest
import torch

from dltutorial.course.checks.narrow import NarrowMLP
from dltutorial.course.checks.rehearsal import Tape
from dltutorial.engine.forecasting import squared_error
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.step import make_optimizer, set_learning_rate, train_step
from dltutorial.errors import CourseError
from dltutorial.step.graphs import GraphedStep

SHAPE = (2, 4, 4)
RECIPE = Recipe(cuda_graph=True, optimizer_impl="fused", learning_rate=1e-2)


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
    assert torch.equal(eager.losses(eager.step), graphed.losses(GraphedStep(graphed.step, tape)))
    assert all(map(torch.equal, eager.model.parameters(), graphed.model.parameters()))


def test_a_step_that_looks_at_its_loss_is_refused_at_capture():
    lab = Lab()
    step = GraphedStep(lambda x, y: lab.step(x, y) * lab.step(x, y).item(), Tape())
    for _ in range(2):  # it stays refused
        with pytest.raises(CourseError, match="looks at a value"):
            lab.losses(step)


def test_the_narrow_network_is_launch_bound():
    """Its operations at a microsecond each take ten times as long as its products on a slow core (20 GFLOP/s)."""
    model = NarrowMLP((5, 8, 8))
    n_operations = count(model, torch.ones(8, 5, 8, 8))
    assert n_operations > 300
    flop = 6 * 8 * sum(p.numel() for p in model.parameters() if p.ndim == 2)  # three passes, a batch of 8
    assert n_operations * 1e-6 > 5 * flop / 20e9


def test_operations_grow_with_depth_and_not_with_width():
    x = torch.ones(4, *SHAPE)
    counts = {(dim, depth): count(NarrowMLP(SHAPE, dim, depth), x) for dim in (4, 8) for depth in (1, 2, 3)}
    assert counts[4, 2] == counts[8, 2]
    assert counts[4, 3] - counts[4, 2] == counts[4, 2] - counts[4, 1] > 5


def count(model, x):
    """Operations in a training step."""
    optimizer, tape = make_optimizer(model, RECIPE), Tape()
    train_step(model, (x, x), squared_error, optimizer)
    with tape.capture():
        train_step(model, (x, x), squared_error, optimizer)
    return len(tape)
