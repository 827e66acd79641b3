"""The model of the published ladder: its count of parameters and, with its weights put in, its output to the bit.

``Published`` is written from the structure of networks/vit.py in NERSC's public repositories sc23-, sc24- and
sc25-dl-tutorial (at 134b013, 3e6c3db, 8c6ccde) and from the sizes in their config/ViT.yaml; the parameters' names are
theirs. SC23 has one matrix for queries, keys and values, the later ones have three. None states a count of parameters.
"""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dltutorial.config import PRESETS, Preset
from dltutorial.models.vit import ViT

EDITIONS = ("sc23", "sc25")  # and sc24 is as sc25
# With these arguments the model is the published one.
PUBLISHED = {"predict_change": False, "head_bias": False, "norm_eps": 1e-6}
LARGE = PRESETS["gpu"]
SMALL = dataclasses.replace(LARGE, n_lat=32, n_lon=64, n_layers=1, dim=64, depth=3, heads=4)
# 12 blocks of four matrices, their biases and two norms; patches, positions, last norm, a head without bias.
COUNT = 12 * (12 * 384**2 + 13 * 384) + (20 * 64 * 384 + 384) + 45 * 90 * 384 + 2 * 384 + 384 * 20 * 64

pytestmark = pytest.mark.usefixtures("one_thread")


def make_vit(sizes: Preset) -> ViT:
    shape = (sizes.n_channels, sizes.n_lat, sizes.n_lon, sizes.patch, sizes.dim, sizes.depth, sizes.heads)
    return ViT(*shape, **PUBLISHED)


class PublishedBlock(nn.Module):
    def __init__(self, dim, heads, edition):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        parts = {"qkv": 3 * dim} if edition == "sc23" else dict.fromkeys("qkv", dim)
        self.attn = nn.ModuleDict(
            {name: nn.Linear(dim, n) for name, n in parts.items()} | {"proj": nn.Linear(dim, dim)}
        )
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(dim, 4 * dim), "fc2": nn.Linear(4 * dim, dim)})

    def forward(self, x):
        y, attn = self.norm1(x), self.attn
        q, k, v = attn["qkv"](y).chunk(3, -1) if "qkv" in attn else (attn[name](y) for name in "qkv")
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        x = x + attn["proj"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class Published(nn.Module):
    def __init__(self, sizes, edition):
        super().__init__()
        self.sizes, C, D, p = sizes, sizes.n_channels, sizes.dim, sizes.patch
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(C, D, kernel_size=p, stride=p)})
        self.pos_embed = nn.Parameter(torch.zeros(1, sizes.n_tokens, D))
        self.blocks = nn.ModuleList(PublishedBlock(D, sizes.heads, edition) for _ in range(sizes.depth))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.head = nn.Linear(D, p * p * C, bias=False)

    def forward(self, x):
        p, rows, columns = self.sizes.patch, self.sizes.n_lat // self.sizes.patch, self.sizes.n_lon // self.sizes.patch
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        # a token's outputs: row in the patch, column in it, channel
        patches = self.head(self.norm(x)).unflatten(-1, (p, p, -1)).unflatten(1, (rows, columns))
        return torch.einsum("nhwpqc->nchpwq", patches).flatten(4, 5).flatten(2, 3)


def weights_for_ours(theirs, sizes):
    """The published model's weights under the names of ours."""
    of, found = theirs.state_dict(), {}
    for kind in ("weight", "bias"):
        found |= {f"embed.{kind}": of[f"patch_embed.proj.{kind}"], f"norm.{kind}": of[f"norm.{kind}"]}
        for n in range(sizes.depth):
            here, qkv = f"blocks.{n}", [of[name] for part in "qkv" if (name := f"blocks.{n}.attn.{part}.{kind}") in of]
            names = {"norm1": "norm_attention", "norm2": "norm_mlp", "attn.proj": "attention.out"}
            names |= {"mlp.fc1": "mlp.0", "mlp.fc2": "mlp.2"}
            found |= {f"{here}.{ours}.{kind}": of[f"{here}.{their}.{kind}"] for their, ours in names.items()}
            published = torch.cat(qkv) if qkv else of[f"{here}.attn.qkv.{kind}"]
            by_head = published.unflatten(0, (3, sizes.heads, -1)).transpose(0, 1)
            found[f"{here}.attention.qkv.{kind}"] = by_head.flatten(0, 2)
    head = of["head.weight"].unflatten(0, (sizes.patch**2, sizes.n_channels))
    return found | {"position_1TD": of["pos_embed"], "head.weight": head.transpose(0, 1).flatten(0, 1)}


@pytest.fixture(params=EDITIONS)
def theirs(request):
    """A published model with weights of which none is what it begins with."""
    torch.manual_seed(0)
    model = Published(SMALL, request.param)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def test_with_the_published_weights_the_output_is_the_published_to_the_bit(theirs):
    """In float32: every sum has the same numbers in the same order, since matrices differ in their rows alone."""
    ours = make_vit(SMALL)
    ours.load_state_dict(weights_for_ours(theirs, SMALL))
    x = torch.randn(2, SMALL.n_channels, SMALL.n_lat, SMALL.n_lon)
    with torch.no_grad():
        expected = theirs(x)
        assert expected.std() > 0.1
        assert torch.equal(ours(x), expected)


@pytest.mark.parametrize("edition", EDITIONS)
def test_at_the_published_size_it_has_the_published_count(edition):
    with torch.device("meta"):
        ours, theirs = make_vit(LARGE), Published(LARGE, edition)
        assert ours(torch.zeros(2, 20, 360, 720)).shape == (2, 20, 360, 720)
    for model in (ours, theirs):
        assert sum(p.numel() for p in model.parameters()) == COUNT
    assert COUNT == 23_832_960


def test_initial_weights_are_drawn_as_theirs():
    """A normal distribution of width 0.02 for matrices and positions, zeros for biases; torch's own for patches."""
    torch.manual_seed(0)
    model = make_vit(SMALL)
    for name, weight in model.named_parameters():
        if name.startswith("embed"):
            assert weight.abs().max() <= (SMALL.n_channels * SMALL.patch**2) ** -0.5
        elif weight.ndim > 1:
            assert weight.std().item() == pytest.approx(0.02, rel=0.05), name
        else:
            assert (weight == (1 if "norm" in name and name.endswith("weight") else 0)).all(), name
