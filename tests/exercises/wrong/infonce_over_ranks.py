"""Wrong answers to chapter 22's exercise: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, slope):
        total = slope.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def info_nce(image_BP, spectrum_BP, id_B, temperature):
    image_BP, spectrum_BP = F.normalize(image_BP, dim=1), F.normalize(spectrum_BP, dim=1)
    B, id_N = len(id_B), Gather.apply(id_B)
    partner_B = dist.get_rank() * B + torch.arange(B)
    out_BN = id_B[:, None] == id_N
    out_BN[torch.arange(B), partner_B] = False
    total = 0.0
    for mine_BP, other_BP in ((image_BP, spectrum_BP), (spectrum_BP, image_BP)):
        logits_BN = mine_BP @ Gather.apply(other_BP).T / temperature
        total = total + F.cross_entropy(logits_BN.masked_fill(out_BN, -torch.inf), partner_B)
    return total / 2
"""
_with = functools.partial(altered, RIGHT)
_GATHERED = "Gather.apply(other_BP)"

WRONG = [
    (
        "own negatives only",
        _with(("Gather.apply(id_B)", "id_B"), (_GATHERED, "other_BP"), ("dist.get_rank() * B + ", "")),
        "among those of *all* ranks",
    ),
    ("no gradient through the gather", _with((_GATHERED, "Gather.apply(other_BP.detach())")), "Hand that back"),
    ("the first are mine", _with(("dist.get_rank() * B + ", "")), "begin at r times B"),
    (
        "averages slopes",
        _with(("        return total.chunk", "        total /= dist.get_world_size()\n        return total.chunk")),
        "not averaged",
    ),
    (
        "ids are ignored",
        _with(("out_BN = id_B[:, None] == id_N", "out_BN = torch.zeros(B, len(id_N), dtype=torch.bool)")),
        "is no negative",
    ),
    ("own slopes only", _with(("        dist.all_reduce(total)\n", "")), None),
    (
        "not normalised",
        _with(("F.normalize(image_BP, dim=1), F.normalize(spectrum_BP, dim=1)", "image_BP, spectrum_BP")),
        "by its length",
    ),
    (
        "normalised over the batch",
        _with(("image_BP, dim=1", "image_BP, dim=0"), ("spectrum_BP, dim=1", "spectrum_BP, dim=0")),
        None,
    ),
    (
        "one way",
        _with(
            (
                "for mine_BP, other_BP in ((image_BP, spectrum_BP), (spectrum_BP, image_BP)):",
                "for mine_BP, other_BP in ((image_BP, spectrum_BP),):",
            ),
            ("return total / 2", "return total"),
        ),
        "Both ways",
    ),
    ("the sum of both ways", _with(("return total / 2", "return total")), "not their sum"),
    ("times the temperature", _with((".T / temperature", ".T * temperature")), "divided by the temperature"),
    ("leaves the partner out, too", _with(("    out_BN[torch.arange(B), partner_B] = False\n", "")), None),
    (
        "ids of this rank only",
        _with(
            (
                "out_BN = id_B[:, None] == id_N",
                "here = torch.arange(len(id_N)) // B == dist.get_rank()\n    out_BN = (id_B[:, None] == id_N) & here",
            )
        ),
        "ids of all ranks",
    ),
    (
        "ids as float32",
        _with(("Gather.apply(id_B)", "Gather.apply(id_B.float())")),
        "float32 has 24 bits",
    ),
    (
        "ids between the embeddings",
        _with(
            (
                "len(id_B), Gather.apply(id_B)",
                "len(id_B), Gather.apply(torch.cat((image_BP.float(), id_B[:, None]), 1))[:, -1]",
            )
        ),
        "float32 has 24 bits",
    ),
    (
        "the sum over samples",
        _with(("-torch.inf), partner_B)", "-torch.inf), partner_B, reduction='sum')")),
        "not their sum",
    ),
    ("times the number of ranks", _with(("return total / 2", "return total / 2 * dist.get_world_size()")), None),
    (
        "slopes times the number of ranks",
        _with(
            (
                "return total / 2",
                "total = total / 2\n    return total.detach() + dist.get_world_size() * (total - total.detach())",
            )
        ),
        "too large",
    ),
    ("the next rank's slopes", _with(("[dist.get_rank()]", "[dist.get_rank() - 1]")), None),
]
