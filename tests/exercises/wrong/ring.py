"""Wrong answers to the exercise of chapter 08, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
import torch
import torch.distributed as dist

def ring(x):
    p, me = dist.get_world_size(), dist.get_rank()
    after, before = (me + 1) % p, (me - 1) % p
    chunks = x.tensor_split(p)

    def exchange(out, into):
        ops = [dist.P2POp(dist.isend, out, after), dist.P2POp(dist.irecv, into, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    for step in range(p - 1):
        into = chunks[(me - step - 2) % p]
        spare = torch.empty_like(into)
        exchange(chunks[(me - step - 1) % p], spare)
        into += spare
    for step in range(p - 1):
        exchange(chunks[(me - step) % p], chunks[(me - step - 1) % p])
"""
FIRST, SECOND = (part for part in RIGHT.split("    for step in range(p - 1):\n")[1:])
HALF = "    for step in range(p - 1):\n"


_with = functools.partial(altered, RIGHT)


WRONG = [
    ("only the first half", _with((HALF + SECOND, "")), "half of the work"),
    ("p rounds of adding", RIGHT.replace(HALF, "    for step in range(p):\n", 1), "no more"),
    ("one round too few at the end", _with((HALF + SECOND, "    for step in range(p - 2):\n" + SECOND)), None),
    ("the halves use different numbering",
     _with(("(me - step - 1) % p], spare", "(me - step) % p], spare"), ("(me - step - 2)", "(me - step - 1)")), None),
    ("sends the chunk it is about to receive", _with(("(me - step - 1) % p], spare", "(me - step - 2) % p], spare")),
     None),
    ("each rank gives another chunk",
     _with((HALF + FIRST, "    carry = chunks[me].clone()\n" + HALF + FIRST),
           ("into = chunks[(me - step - 2) % p]", "into = chunks[me]"),
           ("exchange(chunks[(me - step - 1) % p], spare)", "exchange(carry, spare)"),
           ("        into += spare\n", "        into += spare\n        carry = spare\n")), "different places"),
    ("always the same chunk", _with(("(me - step - 1) % p], spare", "me], spare")), None),
    ("overwrites instead of adding", _with(("into += spare", "into.copy_(spare)")), "missing"),
    ("adds in the second half too",
     _with(("        exchange(chunks[(me - step) % p], chunks[(me - step - 1) % p])\n",
            "        spare = torch.empty_like(chunks[(me - step - 1) % p])\n"
            "        exchange(chunks[(me - step) % p], spare)\n"
            "        chunks[(me - step - 1) % p].add_(spare)\n")), "only copied, not added"),
    ("puts a chunk into the tuple", _with(("        into += spare", "        chunks[(me - step - 2) % p] += spare")),
     "Use chunks[i].add_"),
    ("a mean", RIGHT + "    x /= p\n", "That is the mean"),
    ("blocking send on every rank",
     _with(("        exchange(chunks[(me - step - 1) % p], spare)\n",
            "        dist.send(chunks[(me - step - 1) % p], after)\n        dist.recv(spare, before)\n")),
     "nobody receives"),
    ("blocking receive on every rank",
     _with(("        exchange(chunks[(me - step - 1) % p], spare)\n",
            "        dist.recv(spare, before)\n        dist.send(chunks[(me - step - 1) % p], after)\n")),
     "A deadlock"),
    ("rank 0 has one round less", _with((HALF + SECOND, "    for step in range(p - 1 - (me == 0)):\n" + SECOND)), None),
    ("a view of p equal rows", _with(("x.tensor_split(p)", "x.view(p, -1)")), "do not divide"),
    ("drops the rest", _with(("x.tensor_split(p)", "x[: len(x) // p * p].view(p, -1)")), "never sent"),
    (
        "the whole vector around the ring",
        """
import torch
import torch.distributed as dist

def ring(x):
    passing, spare, p, me = x.clone(), torch.empty_like(x), dist.get_world_size(), dist.get_rank()
    for step in range(p - 1):
        going, coming = dist.isend(passing, (me + 1) % p), dist.irecv(spare, (me - 1) % p)
        going.wait(), coming.wait()
        x += spare
        passing.copy_(spare)
""",
        "Too many bytes",
    ),
    (
        "a server",
        """
import torch
import torch.distributed as dist

def ring(x):
    others = range(1, dist.get_world_size())
    if dist.get_rank():
        dist.send(x, 0)
        dist.recv(x, 0)
        return
    spare = torch.empty_like(x)
    for rank in others:
        dist.recv(spare, rank)
        x += spare
    for rank in others:
        dist.send(x, rank)
""",
        "only to the next",
    ),
    ("the backend does it", "import torch.distributed as dist\n\ndef ring(x):\n    dist.all_reduce(x)\n",
     "Nothing was sent"),
    ("a new tensor", _with(("    chunks = x.tensor", "    x = x.clone()\n    chunks = x.tensor")) + "    return x\n",
     "Work in place"),
    ("spare memory of one dtype", _with(("torch.empty_like(into)", "torch.empty(len(into))")), None),
    (
        "an isend of its own",
        RIGHT.replace(
            "import torch.distributed as dist",
            "import torch.distributed as dist\nfrom torch.distributed import isend, irecv",
        )
        .replace("dist.P2POp(dist.isend, out", "dist.P2POp(isend, out")
        .replace("range(p - 1)", "range(p)", 1),
        "no more",
    ),
    ("for two ranks only", _with(("p, me = dist.get_world_size(), dist.get_rank()", "p, me = 2, dist.get_rank() % 2")),
     None),
    ("no modulo", _with(("after, before = (me + 1) % p, (me - 1) % p", "after, before = me + 1, me - 1")), None),
]  # fmt: skip
