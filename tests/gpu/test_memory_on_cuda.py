"""Memory of a step on a GPU: the most that torch had allocated, beside what is counted on paper."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dltutorial.config import Recipe
from dltutorial.profile.memory import Shape, of_step
from dltutorial.train.forecasting import make_vit
from dltutorial.train.precision import Precision
from dltutorial.train.step import make_optimizer

pytestmark = pytest.mark.gpu

RECIPE = Recipe(n_lat=128, n_lon=256, dim=384, depth=6, heads=6, global_batch_size=16)
FORMATS = {"fp32": "fp32", "bf16": "16-bit autocast"}


class AgainInBackward(nn.Module):
    """A block that keeps its input only."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x_BTD):
        return checkpoint(self.block, x_BTD, use_reentrant=False)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", FORMATS)
def test_a_step_allocates_about_what_is_counted(precision, checkpointing):
    shape = (RECIPE.global_batch_size, RECIPE.n_channels, RECIPE.n_lat, RECIPE.n_lon)
    before = torch.cuda.memory_allocated()
    model = make_vit(RECIPE).to("cuda")
    if checkpointing:
        model.blocks = nn.ModuleList(map(AgainInBackward, model.blocks))
    optimizer = make_optimizer(model, RECIPE)
    x_BCHW, y_BCHW = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
    for _ in range(2):  # the first makes the optimizer's states and the libraries' workspaces
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        with Precision(precision, "cuda").autocast():
            loss = F.mse_loss(model(x_BCHW), y_BCHW)
        loss.backward()
        optimizer.step()
    found = torch.cuda.max_memory_allocated() - before
    paper = of_step(Shape.of(RECIPE), shape[0], FORMATS[precision], checkpointing=checkpointing)
    # Gradients come while activations go; on the other hand, what an operation needs for itself is not on paper.
    assert 0.75 * paper.total < found < 1.4 * paper.total
