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
_BACK = "    out_BN[torch.arange(B), partner_B] = False\n"
_FILLED = "logits_BN.masked_fill(out_BN, -torch.inf)"
_ENTROPY = f"F.cross_entropy({_FILLED}, partner_B)"
_ALIKE = "(id_B[:, None] == id_N)"
_LONE = "~out_BN.any(1)"
_ANY = f"(logits_BN.logsumexp(1) - logits_BN.where({_ALIKE}, -torch.inf).logsumexp(1)).mean()"
_PIECES = """
def pieces_of(x):
    pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, x.detach().contiguous())
    pieces[dist.get_rank()] = x
    return torch.cat(pieces)

"""
_WHOLE = """
def info_nce(image_BP, spectrum_BP, id_B, temperature):
    image_NP, spectrum_NP = (pieces_of(F.normalize(x, dim=1)) for x in (image_BP, spectrum_BP))
    id_N = pieces_of(id_B)
    out_NN = (id_N[:, None] == id_N).fill_diagonal_(False)
    logits_NN = (image_NP @ spectrum_NP.T / temperature).masked_fill(out_NN, -torch.inf)
    partner_N = torch.arange(len(id_N))
    return (F.cross_entropy(logits_NN, partner_N) + F.cross_entropy(logits_NN.T, partner_N)) / 2
"""
_VIEWS = """
def info_nce(image_BP, spectrum_BP, id_B, temperature):
    mine = torch.stack((F.normalize(image_BP, dim=1), F.normalize(spectrum_BP, dim=1)))
    every = torch.stack([Gather.apply(x) for x in mine])
    B, N = mine.shape[1], every.shape[1]
    own = dist.get_rank() * B + torch.arange(B)
    logits = mine.flatten(0, 1) @ every.flatten(0, 1).T / temperature
    logits[torch.arange(2 * B), torch.cat((own, N + own))] = -torch.inf
    return F.cross_entropy(logits, torch.cat((N + own, own)))
"""
_TRANSPOSED = """
def info_nce(image_BP, spectrum_BP, id_B, temperature):
    image_BP, spectrum_BP = F.normalize(image_BP, dim=1), F.normalize(spectrum_BP, dim=1)
    B, id_N = len(id_B), Gather.apply(id_B)
    own_B = dist.get_rank() * B + torch.arange(B)
    out_BN = id_B[:, None] == id_N
    out_BN[torch.arange(B), own_B] = False
    logits_BN = (image_BP @ Gather.apply(spectrum_BP).T / temperature).masked_fill(out_BN, -torch.inf)
    back = F.cross_entropy(logits_BN[:, own_B].T, torch.arange(B))
    return (F.cross_entropy(logits_BN, own_B) + back) / 2
"""

RIGHT_TOO = [("a logit of minus 1e9", _with((_FILLED, "logits_BN.masked_fill(out_BN, -1e9)")))]

WRONG = [
    ("own negatives only",
     _with(("Gather.apply(id_B)", "id_B"), (_GATHERED, "other_BP"), ("dist.get_rank() * B + ", "")),
     "among those of *all* ranks"),
    ("no gradient through the gather", _with((_GATHERED, "Gather.apply(other_BP.detach())")), "must be added to yours"),
    ("the first are mine", _with(("dist.get_rank() * B + ", "")), "begin at r times B"),
    ("averages slopes",
     _with(("        return total.chunk", "        total /= dist.get_world_size()\n        return total.chunk")),
     "not averaged"),
    ("ids are ignored",
     _with(("out_BN = id_B[:, None] == id_N", "out_BN = torch.zeros(B, len(id_N), dtype=torch.bool)")),
     "is no negative"),
    ("own slopes only", _with(("        dist.all_reduce(total)\n", "")), "must be added to yours"),
    ("own piece put among the others", _PIECES + _with((_GATHERED, "pieces_of(other_BP)")), "must be added to yours"),
    ("the whole loss, own piece attached", _PIECES + _WHOLE, "n times too small"),
    ("not normalised",
     _with(("F.normalize(image_BP, dim=1), F.normalize(spectrum_BP, dim=1)", "image_BP, spectrum_BP")),
     "by its length"),
    ("normalised over the batch",
     _with(("image_BP, dim=1", "image_BP, dim=0"), ("spectrum_BP, dim=1", "spectrum_BP, dim=0")), None),
    ("one way",
     _with(("for mine_BP, other_BP in ((image_BP, spectrum_BP), (spectrum_BP, image_BP)):",
            "for mine_BP, other_BP in ((image_BP, spectrum_BP),):"), ("return total / 2", "return total")),
     "Both ways"),
    ("the sum of both ways", _with(("return total / 2", "return total")), "not their sum"),
    ("times the temperature", _with((".T / temperature", ".T * temperature")), "divided by the temperature"),
    ("leaves the partner out, too", _with((_BACK, "")), "Infinite: "),
    ("leaves the partner out, nearly", _with((_BACK, ""), (_FILLED, "logits_BN.masked_fill(out_BN, -1e9)")),
     "Nearly infinite"),
    ("leaves the partner out by a 0, too", _with((_BACK, ""), (_FILLED, "logits_BN * ~out_BN")), "put it back"),
    ("left out by a product", _with((_FILLED, "logits_BN * ~out_BN")), "e⁰ still counts"),
    ("left out by a 0", _with((_FILLED, "logits_BN.masked_fill(out_BN, 0)")), "e⁰ still counts"),
    ("two targets", _with((_ENTROPY, f"F.cross_entropy(logits_BN, F.normalize({_ALIKE}.double(), 1))")),
     "One target each"),
    ("two targets of 1", _with((_ENTROPY, f"F.cross_entropy(logits_BN, {_ALIKE}.double())")), "One target each"),
    ("any copy is right", _with((_ENTROPY, _ANY)), "One target each"),
    ("the chapter's views", _VIEWS, "N candidates"),
    ("a table transposed", _TRANSPOSED, "one rank's table"),
    ("rows of copies dropped", _with((_ENTROPY, f"F.cross_entropy({_FILLED}[{_LONE}], partner_B[{_LONE}])")),
     "still looks for its partner"),
    ("rows of copies count as 0",
     _with((_ENTROPY, f"F.cross_entropy({_FILLED}, partner_B, reduction='none')[{_LONE}].sum() / B")),
     "still looks for its partner"),
    ("ids of this rank only",
     _with(("out_BN = id_B[:, None] == id_N",
            "here = torch.arange(len(id_N)) // B == dist.get_rank()\n    out_BN = (id_B[:, None] == id_N) & here")),
     "ids of all ranks"),
    ("ids as float32", _with(("Gather.apply(id_B)", "Gather.apply(id_B.float())")), "float32 has 24 bits"),
    ("ids between the embeddings",
     _with(("len(id_B), Gather.apply(id_B)",
            "len(id_B), Gather.apply(torch.cat((image_BP.float(), id_B[:, None]), 1))[:, -1]")), "float32 has 24 bits"),
    ("the sum over samples", _with(("-torch.inf), partner_B)", "-torch.inf), partner_B, reduction='sum')")),
     "not their sum"),
    ("times the number of ranks", _with(("return total / 2", "return total / 2 * dist.get_world_size()")), None),
    ("slopes times the number of ranks",
     _with(("return total / 2",
            "total = total / 2\n    return total.detach() + dist.get_world_size() * (total - total.detach())")),
     "too large"),
    ("the next rank's slopes", _with(("[dist.get_rank()]", "[dist.get_rank() - 1]")), None),
]  # fmt: skip
