"""A vision transformer that forecasts a field.

The input is a normalised field (B, C, H, W). The output is the next state of the field, of the same shape and in the
same units. The field is divided into square patches, and each patch becomes a token:

    field (C, H, W)                       tokens (T, D)                      field (C, H, W)
    ┌────┬────┬────┐                      ┌────┬────┬────┬────┬────┬────┐    ┌────┬────┬────┐
    │ 0  │ 1  │ 2  │  embed, + position   │ 0  │ 1  │ 2  │ 3  │ 4  │ 5  │    │ 0  │ 1  │ 2  │
    ├────┼────┼────┤ ───────────────────► └────┴────┴────┴────┴────┴────┘ ─► ├────┼────┼────┤
    │ 3  │ 4  │ 5  │                       depth blocks, then norm and head   │ 3  │ 4  │ 5  │
    └────┴────┴────┘                                                         └────┴────┴────┘

Attention mixes the tokens, and the MLP acts on each token alone. One block is

    x ─┬─► norm ─► attention ─► + ─┬─► norm ─► MLP ─► + ─►
       └────────────────────────┘  └────────────────┘

The network computes the change of the state, so its output is added to the input. The published model (NERSC's
tutorials SC23 to SC25, networks/vit.py) has ``dim=384, depth=12, heads=8, patch=8`` on 20 × 360 × 720. It computes the
next state itself, and its head has no bias.

Legend: B samples, C channels, H × W grid points (latitude × longitude), p patch edge, T = (H/p)(W/p) tokens, D width of
a token, N heads, E = D/N width of a head.

Source: Dosovitskiy et al. 2020 (arXiv:2010.11929).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """Self-attention. One matmul gives queries, keys and values, and one fused kernel does the rest.

    The rows of ``qkv`` are ordered by head: first the query, key and value of head 0, then those of head 1, and so on.
    Therefore consecutive rows are complete heads, and tensor parallelism can give each rank some of them.
    """

    def __init__(self, dim: int, heads: int) -> None:
        """Make the layers.

        Args:
            dim: D.
            heads: N, which divides D.
        """
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Mix the tokens of each sample."""
        B, T, _ = x_BTD.shape
        qkv_BTN3E = self.qkv(x_BTD).view(B, T, -1, 3, self.head_dim)  # -1 stands for the heads of this rank
        q_BNTE, k_BNTE, v_BNTE = qkv_BTN3E.permute(3, 0, 2, 1, 4)
        mixed_BNTE = F.scaled_dot_product_attention(q_BNTE, k_BNTE, v_BNTE)
        return self.out(mixed_BNTE.transpose(1, 2).reshape(B, T, -1))


class Block(nn.Module):
    """Attention, then an MLP of width 4 D. A layer norm precedes each of them, and their outputs are added to x."""

    def __init__(self, dim: int, heads: int) -> None:
        """Make the layers. The arguments are those of ``ViT``."""
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply one layer of the transformer."""
        x_BTD = x_BTD + self.attention(self.norm_attention(x_BTD))
        return x_BTD + self.mlp(self.norm_mlp(x_BTD))


class ViT(nn.Module):
    """A network that forecasts the next state of a normalised field."""

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        patch: int = 8,
        dim: int = 384,
        depth: int = 12,
        heads: int = 8,
        *,
        checkpoint_blocks: bool = False,
    ) -> None:
        """Make the layers and draw their weights.

        Args:
            channels: C.
            height: H.
            width: W.
            patch: p, the edge of the square of grid points that becomes one token. It divides the height and the width.
            dim: D, the width of a token.
            depth: The number of blocks.
            heads: N, the number of attention heads. It divides ``dim``.
            checkpoint_blocks: Save only the input of each block for the backward pass, and recompute the rest.
        """
        super().__init__()
        self.patch = patch
        self.checkpoint_blocks = checkpoint_blocks
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        n_tokens = (height // patch) * (width // patch)
        self.position_1TD = nn.Parameter(torch.zeros(1, n_tokens, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, channels * patch**2)
        self.apply(initialise)
        nn.init.trunc_normal_(self.position_1TD, std=0.02)
        nn.init.zeros_(self.head.weight)  # so the untrained model is exactly the persistence forecast

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Forecast the next state, in the units of the input."""
        x_BTD = self.to_tokens(x_BCHW)
        x_BTD = self.apply_blocks(x_BTD)
        return x_BCHW + self.to_field(x_BTD, x_BCHW.shape)

    def to_tokens(self, x_BCHW: Tensor) -> Tensor:
        """Turn patches into tokens (B, T, D), and add their positions."""
        # Some CPUs with AMX compute this convolution wrongly in bfloat16 (torch 2.13), so it stays in the input's type.
        with torch.autocast("cpu", enabled=False):
            embedded_BDHW = self.embed(x_BCHW)
        return embedded_BDHW.flatten(2).transpose(1, 2) + self.position_1TD

    def apply_blocks(self, x_BTD: Tensor) -> Tensor:
        """Apply the blocks, one after the other."""
        for block in self.blocks:
            x_BTD = self.apply_block(block, x_BTD)
        return x_BTD

    def apply_block(self, block: nn.Module, x_BTD: Tensor) -> Tensor:
        """Apply one block, and let the backward pass recompute it if ``checkpoint_blocks`` is True."""
        if self.checkpoint_blocks:
            return checkpoint(block, x_BTD, use_reentrant=False)
        return block(x_BTD)

    def to_field(self, x_BTD: Tensor, shape: torch.Size) -> Tensor:
        """Turn tokens into a field of the shape (B, C, H, W)."""
        B, C, H, W = shape
        p = self.patch
        patches = self.head(self.norm(x_BTD)).view(B, H // p, W // p, C, p, p)
        return patches.permute(0, 3, 1, 4, 2, 5).reshape(B, C, H, W)


def initialise(module: nn.Module) -> None:
    """Draw the weights of a linear layer. Other layers keep torch's initial weights."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
