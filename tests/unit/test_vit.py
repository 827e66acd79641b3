import torch
from torch.nn import functional as F

from dltutorial.models.vit import Attention, ViT


def test_untrained_model_is_the_persistence_forecast():
    x = torch.randn(2, 3, 16, 24)
    assert torch.equal(ViT(3, 16, 24, patch=4, dim=32, depth=2, heads=4)(x), x)


def test_fused_attention_equals_attention_written_out():
    torch.manual_seed(0)
    attention, x = Attention(32, 4), torch.randn(2, 6, 32)
    q, k, v = attention.qkv(x).unflatten(-1, (4, 3, 8)).transpose(2, 3).flatten(3).unbind(2)
    heads = [
        F.softmax(q[..., i : i + 8] @ k[..., i : i + 8].transpose(1, 2) / 8**0.5, -1) @ v[..., i : i + 8]
        for i in range(0, 32, 8)
    ]
    torch.testing.assert_close(attention(x), attention.out(torch.cat(heads, -1)))


def test_initial_weights_are_those_of_the_published_model():
    """A normal distribution of width 0.02 for matrices and positions, zeros for biases, torch's own for patches."""
    torch.manual_seed(0)
    for name, weight in ViT(3, 32, 64, patch=8, dim=64, depth=3, heads=4).named_parameters():
        if name.startswith("embed"):
            assert weight.abs().max() <= (3 * 8**2) ** -0.5
        elif weight.ndim > 1 and name != "head.weight":
            assert 0.95 < weight.std() / 0.02 < 1.05, name
        else:
            assert (weight == (1 if "norm" in name and name.endswith("weight") else 0)).all(), name
