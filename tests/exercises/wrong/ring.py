"""Wrong answers to the exercise of chapter 08, each a misconception: (label, source, part of the hint expected)."""

import functools

from altered import altered

RIGHT = """
import torch
import torch.distributed as dist

def ring(x, comm):
    p, me = comm.size, comm.rank
    after, before = (me + 1) % p, (me - 1) % p
    chunks = x.tensor_split(p)
    for step in range(p - 1):
        into = chunks[(me - step - 2) % p]
        spare = torch.empty_like(into)
        comm.exchange(chunks[(me - step - 1) % p], after, spare, before)
        into += spare
    for step in range(p - 1):
        comm.exchange(chunks[(me - step) % p], after, chunks[(me - step - 1) % p], before)
"""
FIRST, SECOND = (part for part in RIGHT.split("    for step in range(p - 1):\n")[1:])
HALF = "    for step in range(p - 1):\n"


_with = functools.partial(altered, RIGHT)


WRONG = [
    ("only the first half", _with((HALF + SECOND, "")), "half of the work"),
    ("p rounds of adding", RIGHT.replace(HALF, "    for step in range(p):\n", 1), "no more"),
    (
        "one round too few at the end",
        _with((HALF + SECOND, "    for step in range(p - 2):\n" + SECOND)),
        None,
    ),
    (
        "the halves use different numbering",
        _with(
            ("(me - step - 1) % p], after, spare", "(me - step) % p], after, spare"),
            ("(me - step - 2)", "(me - step - 1)"),
        ),
        None,
    ),
    (
        "sends the chunk it is about to receive",
        _with(("(me - step - 1) % p], after, spare", "(me - step - 2) % p], after, spare")),
        None,
    ),
    ("always the same chunk", _with(("(me - step - 1) % p], after, spare", "me], after, spare")), None),
    ("overwrites instead of adding", _with(("into += spare", "into.copy_(spare)")), "missing"),
    (
        "adds in the second half too",
        _with(
            (
                "        comm.exchange(chunks[(me - step) % p], after, chunks[(me - step - 1) % p], before)\n",
                "        spare = torch.empty_like(chunks[(me - step - 1) % p])\n"
                "        comm.exchange(chunks[(me - step) % p], after, spare, before)\n"
                "        chunks[(me - step - 1) % p].add_(spare)\n",
            )
        ),
        "only copied, not added",
    ),
    (
        "puts a chunk into the tuple",
        _with(("        into += spare", "        chunks[(me - step - 2) % p] += spare")),
        "Use chunks[i].add_",
    ),
    ("a mean", RIGHT + "    x /= p\n", "That is the mean"),
    (
        "blocking send on every rank",
        _with(
            (
                "        comm.exchange(chunks[(me - step - 1) % p], after, spare, before)\n",
                "        comm.send(chunks[(me - step - 1) % p], after)\n        comm.receive(spare, before)\n",
            )
        ),
        "nobody receives",
    ),
    (
        "blocking receive on every rank",
        _with(
            (
                "        comm.exchange(chunks[(me - step - 1) % p], after, spare, before)\n",
                "        comm.receive(spare, before)\n        comm.send(chunks[(me - step - 1) % p], after)\n",
            )
        ),
        "A deadlock",
    ),
    ("rank 0 has one round less", _with((HALF + SECOND, "    for step in range(p - 1 - (me == 0)):\n" + SECOND)), None),
    ("a view of p equal rows", _with(("x.tensor_split(p)", "x.view(p, -1)")), "do not divide"),
    ("drops the rest", _with(("x.tensor_split(p)", "x[: len(x) // p * p].view(p, -1)")), "never sent"),
    (
        "the whole vector around the ring",
        """
import torch

def ring(x, comm):
    passing, spare = x.clone(), torch.empty_like(x)
    for step in range(comm.size - 1):
        comm.exchange(passing, (comm.rank + 1) % comm.size, spare, (comm.rank - 1) % comm.size)
        x += spare
        passing.copy_(spare)
""",
        "Too many bytes",
    ),
    (
        "a server",
        """
import torch

def ring(x, comm):
    others = range(1, comm.size)
    if comm.rank:
        comm.send(x, 0)
        comm.receive(x, 0)
        return
    inbox = [torch.empty_like(x) for _ in others]
    comm.exchange_all([], list(zip(inbox, others)))
    for received in inbox:
        x += received
    comm.exchange_all([(x, rank) for rank in others], [])
""",
        "only to the next",
    ),
    (
        "the backend does it",
        "import torch.distributed as dist\n\ndef ring(x, comm):\n    dist.all_reduce(x)\n",
        "no message",
    ),
    (
        "a new tensor",
        _with(("    chunks = x.tensor", "    x = x.clone()\n    chunks = x.tensor")) + "    return x\n",
        "Work in place",
    ),
    ("spare memory of one dtype", _with(("torch.empty_like(into)", "torch.empty(len(into))")), None),
    ("for two ranks only", _with(("p, me = comm.size, comm.rank", "p, me = 2, comm.rank % 2")), None),
    ("no modulo", _with(("after, before = (me + 1) % p, (me - 1) % p", "after, before = me + 1, me - 1")), None),
]
