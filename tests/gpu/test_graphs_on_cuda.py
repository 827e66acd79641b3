"""Whole training steps as CUDA graphs."""

import pytest
import torch

from dltutorial.course.checks.narrow import NarrowMLP
from dltutorial.engine.forecasting import make_vit, squared_error
from dltutorial.engine.loop import loop
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.step import make_optimizer, make_step, set_learning_rate
from dltutorial.engine.task import Task
from dltutorial.errors import CourseError

pytestmark = pytest.mark.gpu

SHAPE = (2, 8, 8)


def batches(n=13):
    generator = torch.Generator().manual_seed(0)
    for x in torch.randn(n, 8, *SHAPE, generator=generator).to("cuda"):
        yield x, x.roll(1, -1)


def losses(recipe, model=None):
    torch.manual_seed(0)
    model = (model or NarrowMLP(SHAPE, dim=32, depth=4)).to("cuda")
    optimizer = make_optimizer(model, recipe)
    step = make_step(model, squared_error, optimizer, recipe)
    found = []
    for n, batch in enumerate(batches()):
        set_learning_rate(optimizer, 1e-3 / (1 + n))
        found.append(step(*batch))
    return torch.stack(found), model


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_step_equals_the_eager_one_with_adamw_and_a_schedule(implementation, precision):
    knobs = {"optimizer_impl": implementation, "precision": precision}
    expected, eager = losses(Recipe(**knobs))
    got, graphed = losses(Recipe(cuda_graph=True, **knobs))
    assert torch.allclose(got, expected, rtol=1e-4)
    for one, other in zip(eager.parameters(), graphed.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_fp16_with_its_scaled_loss_is_captured_too():
    knobs = {"optimizer_impl": "fused", "precision": "fp16"}
    assert torch.allclose(losses(Recipe(cuda_graph=True, **knobs))[0], losses(Recipe(**knobs))[0], rtol=1e-2)


def test_dropout_draws_anew_in_every_replay():
    recipe = Recipe(cuda_graph=True, learning_rate=1e-30, weight_decay=0.0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 8, 1), torch.nn.Dropout(0.5), torch.nn.Conv2d(8, 2, 1)).to("cuda")
    step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
    batch = next(batches(1))
    assert len({step(*batch).item() for _ in range(8)}) == 8


def test_the_loop_trains_with_a_graph_as_without():
    recipe = Recipe(n_lat=8, n_lon=8, n_channels=2, dim=32, depth=2, steps=12, warmup_steps=2, log_every=4)

    def seen(**knobs):
        torch.manual_seed(0)
        wanted = Recipe(**{**vars(recipe), **knobs})
        return [
            record.loss
            for record in loop(Task(make_vit(wanted).to("cuda"), lambda skip: batches(), squared_error), wanted)
        ]

    assert seen(cuda_graph=True) == pytest.approx(seen(), rel=1e-3)


def test_a_batch_of_another_shape_is_refused():
    recipe = Recipe(cuda_graph=True)
    model = NarrowMLP(SHAPE, dim=8, depth=1).to("cuda")
    step = make_step(model, squared_error, make_optimizer(model, recipe), recipe)
    for batch in batches(5):
        step(*batch)
    with pytest.raises(CourseError, match="leave incomplete batches out"):
        step(batch[0][:1], batch[1][:1])
