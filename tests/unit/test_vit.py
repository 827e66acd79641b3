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
