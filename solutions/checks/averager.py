"""Checks of chapter 09's exercise: average gradients in buckets, while the backward pass goes on.

The answer runs on two real ranks (``averager_ranks``). Looked at: the gradients, the weights after some updates, the
messages and their sizes, and whether they leave while gradients are still to come. A hang ends within seconds.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dltutorial.course.checks import Exercise, Wrong, averager_ranks
from dltutorial.course.checks.averager_ranks import RATE, Net, Report, own_gradients
from dltutorial.course.checks.expect import expect_close
from dltutorial.launch import RankFailed, RanksHang, launch

_RANKS = 2
PATIENCE_S = 20.0  # for ranks that share busy cores
_RESET = "After finish() the next step starts afresh: count again from the full buckets, forget the old messages."


class _Done:
    """A message of a single process: its sum is itself."""

    def wait(self) -> None:
        """Nothing to wait for."""


def _alone(fn: Callable) -> None:
    """By itself, a bucket of two leaves with its second gradient"""
    bucket, sent = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 3))], []
    averager = fn([bucket], lambda flat: sent.append(flat.numel()) or _Done(), 1)
    if not all(callable(getattr(averager, name, None)) for name in ("on_gradient", "finish")):
        raise Wrong("a class with on_gradient() and finish()", averager)
    before = []
    for parameter in bucket:
        before.append(len(sent))
        parameter.grad = torch.full_like(parameter, 2.0)
        averager.on_gradient(parameter)
    if before[1]:
        hint = "A message left with the first gradient already. Count down: a bucket leaves when none is missing."
        raise Wrong("no message before both gradients are there", f"{before[1]} with the first", hint)
    averager.finish()
    if sent != [5]:
        raise Wrong("one message of 5 numbers", f"messages of {sent} numbers", "Put both gradients into one flat row.")
    if tuple(bucket[1].grad.shape) != (1, 3):
        got = f"shape {tuple(bucket[1].grad.shape)}"
        raise Wrong("a gradient of shape (1, 3)", got, "Cut the flat row into pieces, each in its parameter's shape.")


def _zeros_are_the_parameters_kin(fn: Callable) -> None:
    """Zeros for a missing gradient are of the parameter's device and dtype"""
    hint = "Zeros for a gradient that did not come are made on the CPU, in float32, unless told: torch.zeros_like(p)."
    for dtype, device in ((torch.bfloat16, "cpu"), (torch.float32, "meta")):
        bucket, sent = [nn.Parameter(torch.zeros(n, dtype=dtype, device=device)) for n in (2, 3)], []
        averager = fn([bucket], lambda flat, sent=sent: sent.append(flat) or _Done(), 1)
        bucket[0].grad = torch.ones_like(bucket[0])
        averager.on_gradient(bucket[0])
        try:
            averager.finish()
        except RuntimeError as error:
            raise Wrong(
                f"zeros on the device of the parameter ({device})", str(error).split(chr(10))[0], hint
            ) from None
        found = [(str(row.dtype), row.device.type) for row in sent]
        if found != [(str(dtype), device)]:
            raise Wrong(f"one row of {dtype} on {device}", found, hint)


def _on_ranks(fn: Callable, hang_hint: str = "", **how: Any) -> list[Report]:
    """Reports of both ranks."""
    try:
        return launch(averager_ranks.train, _RANKS, fn, timeout_s=PATIENCE_S, **how)
    except RanksHang as hang:
        hint = hang_hint or "One rank waits for a message that the other never sends. Both must send the same ones."
        raise Wrong("both ranks end", str(hang).split(";")[0], hint) from None
    except RankFailed as failure:
        if failure.kind == "MessageError":
            raise _bad_message(*map(int, failure.message.split())) from None
        where = [line.strip() for line in str(failure).splitlines() if line.startswith("    ")]
        got = f"{failure.kind} on rank {failure.rank}: {failure.message}" + (f", at: {where[-1]}" if where else "")
        raise Wrong("no error", got, _RESET if how.get("n_steps", 1) > 1 else "") from None


def _bad_message(n_numbers: int, number: int) -> Wrong:
    buckets = Net().buckets()
    sizes = [sum(p.numel() for p in bucket) for bucket in buckets]
    hint = "Each bucket is one flat row: all its gradients, zeros for one that did not come, and nothing else."
    if n_numbers in sizes:
        hint = "A bucket left out of turn. Bucket 1 waits for bucket 0, even if it is full first: all ranks must agree."
    elif n_numbers == sum(sizes):
        hint = "All gradients went as one message, so nothing could leave early: one message for each bucket."
    elif n_numbers in [p.numel() for bucket in buckets for p in bucket]:
        hint = "One gradient went by itself. Join the gradients of a bucket: torch.cat of flattened ones."
    return Wrong(f"{sizes[number]} numbers in message {number + 1} of a step", f"{n_numbers} numbers", hint)


def _expected(spare_on: tuple[int, ...] = (0, 1)) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The mean of the first step's gradients, and each rank's own, as rows."""
    own = [_row(own_gradients(Net(), 0, rank, rank in spare_on)) for rank in range(_RANKS)]
    return torch.stack(own).mean(0), own


def _row(gradients: list) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def _is_mean(reports: list[Report], spare_on: tuple[int, ...] = (0, 1), hint: str = "") -> None:
    """Raises: Wrong: a rank's first gradients are not the mean."""
    wanted, own = _expected(spare_on)
    for kind, number in itertools.chain(*(report.events for report in reports)):
        if kind == "incomplete":
            early = f"Bucket {number} left when another one was full. Send while the *next in turn* misses nothing."
            raise Wrong("a bucket that leaves with all its gradients", f"bucket {number} left without some", early)
    for rank, report in enumerate(reports):
        if any(gradient is None for gradient in report.gradients[0]):
            none_hint = "Other ranks have a gradient for it: give this rank the mean too, even if it had none itself."
            raise Wrong("a gradient for every parameter", f"None on rank {rank}", none_hint)
        got = _row(report.gradients[0])
        if not any(kind == "wait" for kind, _ in report.events):
            raise Wrong("the sum, which is there after wait()", got, "Nothing waited: call wait() on every handle.")
        mistakes = [
            (wanted * _RANKS, "That is the sum. The mean is the sum divided by the number of ranks."),
            (wanted / _RANKS, "Divided twice."),
            (own[rank], "These are this rank's own gradients: the averaged numbers never came back to .grad."),
            (own[rank] / _RANKS, "This rank's own gradients, divided: read the row after wait(), not before."),
        ]
        expect_close(got, wanted, hint=hint, mistakes=mistakes, atol=1e-6)


def _averages(fn: Callable) -> None:
    """On two ranks, every gradient is the mean, tied weights and all"""
    _is_mean(_on_ranks(fn))


def _sends_one_message_a_bucket(fn: Callable) -> None:
    """One message for each bucket; it leaves with the last gradient, while the backward pass goes on"""
    for report in _on_ranks(fn):
        for kind, word in (("start", "messages"), ("wait", "waits")):
            found = [number for what, number in report.events if what == kind]
            if sorted(found) != [0, 1, 2]:
                hint = "One start() for each bucket, and one wait() for each start()."
                raise Wrong("3 of them, one for each bucket", f"{word} of buckets {found}", hint)
        _check_started_early(report.events)


def _check_started_early(events: list[tuple[str, int]]) -> None:
    """Raises: Wrong: a bucket left later than with its last gradient, or something waited in the backward pass."""
    over = events.index(("backward is over", 0))
    starts = [place for place, (kind, _) in enumerate(events) if kind == "start"]
    if starts[0] > over:
        hint = "All messages left after the backward pass. Call start() in on_gradient, when a bucket is full."
        raise Wrong("the first message during the backward pass", "the first one in finish()", hint)
    if any(kind == "wait" for kind, _ in events[:over]):
        hint = "Something waited inside the backward pass, so the next layer could not go on. Wait in finish()."
        raise Wrong("no wait() before the backward pass is over", "one in on_gradient", hint)
    seen = [sum(kind == "gradient" for kind, _ in events[:place]) for place in starts]
    if seen != [3, 5, 7]:
        hint = "Send a bucket in the very call that completes it."
        raise Wrong("messages after gradients 3, 5 and 7", f"after gradients {seen}", hint)


def _keeps_the_order(fn: Callable) -> None:
    """Gradients arrive in another order on rank 1; the messages leave in the same one"""
    hint = "Gradients came in another order on rank 1. The place of each in its row must not depend on that."
    _is_mean(_on_ranks(fn, backwards_on=(1,)), hint=hint)


def _counts_a_missing_gradient_as_zero(fn: Callable) -> None:
    """Rank 1 does not use the spare head: nobody hangs, and it counts as zero"""
    hang = "On rank 1 bucket 0 never becomes full. finish() has to send what is left, with zeros for what is missing."
    reports = _on_ranks(fn, hang_hint=hang, spare_on=(0,))
    _is_mean(reports, (0,), "The missing gradient counts as zero; the others are averaged as before.")


def _trains(fn: Callable) -> None:
    """After four updates both ranks hold the weights of one process"""
    net = Net()
    for step in range(4):
        gradients = [own_gradients(net, step, rank) for rank in range(_RANKS)]
        with torch.no_grad():
            for parameter, *both in zip(net.trained(), *gradients, strict=True):
                parameter -= RATE * sum(both) / _RANKS
    wanted = torch.cat([p.detach().flatten() for p in net.trained()])
    for report in _on_ranks(fn, hang_hint=_RESET, n_steps=4):
        expect_close(report.weights, wanted, hint=_RESET, atol=1e-6)
        kinds = [kind for kind, _ in report.events]
        over = [-1, *(place for place, kind in enumerate(kinds) if kind == "backward is over")]
        early = [kinds[a + 1 : b].count("start") for a, b in itertools.pairwise(over)]
        if early != [3, 3, 3, 3]:
            raise Wrong("3 messages during each backward pass", f"{early} in steps 1 to 4", _RESET)


_HINTS = (
    "What must a bucket remember between start() and finish()? Its flat row, and the handle that start() returned.",
    "When is a bucket full? May it leave then, if the one before it has not?",
    "Four things in finish(), in this order: what has not left leaves; wait; the mean; back into each .grad.",
)
_CODE = (
    "row = torch.cat([p.grad.flatten() for p in bucket])",
    "for p, part in zip(bucket, row.split([p.numel() for p in bucket])): p.grad = part.view_as(p)",
)
EXERCISE = Exercise(
    name="averager",
    chapter="09",
    cases=(
        _alone,
        _averages,
        _sends_one_message_a_bucket,
        _keeps_the_order,
        _counts_a_missing_gradient_as_zero,
        _zeros_are_the_parameters_kin,
        _trains,
    ),
    hints=_HINTS,
    code=_CODE,
    deadline_s=180.0,
)
