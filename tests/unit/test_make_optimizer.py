import pytest
import torch
from torch import nn

from dltutorial.engine.recipe import Recipe
from dltutorial.engine.step import make_optimizer, set_learning_rate


def trained(implementation, n_steps=5):
    """All weights after some updates with gradients that grow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = make_optimizer(model, Recipe(optimizer_impl=implementation, learning_rate=1e-2, weight_decay=0.1))
    for step in range(n_steps):
        for p in model.parameters():
            p.grad = torch.randn_like(p) * (step + 1)
        set_learning_rate(optimizer, 1e-2 / (step + 1))
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("implementation", ["auto", "foreach", "fused"])
def test_all_implementations_give_the_same_weights(implementation):
    expected = trained("for-loop")
    assert (expected - trained("for-loop", 0)).abs().min() > 1e-4, "the weights did not move"
    assert torch.allclose(trained(implementation), expected, rtol=1e-4, atol=1e-6)


def test_a_tensor_rate_is_changed_in_place():
    optimizer = make_optimizer(nn.Linear(2, 2), Recipe(cuda_graph=True))
    before = [group["lr"] for group in optimizer.param_groups]
    set_learning_rate(optimizer, 0.25)
    for group, rate in zip(optimizer.param_groups, before, strict=True):
        assert group["lr"] is rate
        assert rate.item() == 0.25
        assert group["capturable"]


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_layerwise_optimizers_spare_biases_and_norms_and_can_be_captured(optimizer):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    made = make_optimizer(model, Recipe(optimizer=optimizer, cuda_graph=True, beta1=0.5))
    adapted, spared = made.param_groups
    assert (adapted["adapt"], spared["adapt"]) == (True, False)
    assert (adapted["weight_decay"], spared["weight_decay"]) == (Recipe.weight_decay, 0.0)
    assert {p.ndim for p in spared["params"]} == {1}
    assert adapted.get("momentum", adapted.get("betas", [0])[0]) == 0.5
    before = adapted["lr"]
    set_learning_rate(made, 0.25)
    assert adapted["lr"] is before
    assert before.item() == 0.25
