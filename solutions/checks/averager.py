"""Checks of chapter 09's exercise: average gradients in buckets during the backward pass.

The answer is a class. It runs in this process with one bucket, and on two ranks with three buckets (see
``averager_ranks``). The checks compare the gradients and the weights with the mean over the ranks. They also compare
the sizes of the messages, and the moments at which the messages start and are waited for.

Source: Li et al. 2020, arXiv:2006.15704
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.averager_ranks import (
    LEARNING_RATE,
    Event,
    Net,
    Report,
    Scenario,
    own_gradients,
    train_on_rank,
)
from dltutorial.course.checks.rank_harness import Mistakes, RankError, expect_close_on_ranks, run_on_ranks

_WORLD_SIZE = 2
_N_STEPS = 4
_RESET = "After finish() the next step starts afresh: count again from the full buckets, forget the old messages."
_UNSENT = "One rank waits for a message that the other never sends. Both must send the same ones."
_NEVER_FULL = (
    "On rank 1 bucket 0 never becomes full. finish() has to send what is left, with zeros for what is missing."
)
_TOO_EARLY = "A message left with the first gradient already. Count down: a bucket leaves when none is missing."
_SHAPES = "Cut the flat row into pieces, each in its parameter's shape."
_ZEROS = "Zeros for a gradient that did not come are made on the CPU, in float32, unless told: torch.zeros_like(p)."
_FLAT_ROW = "Each bucket is one flat row: all its gradients, zeros for one that did not come, and nothing else."
_OUT_OF_TURN = "A bucket left out of turn. Bucket 1 waits for bucket 0, even if it is full first: all ranks must agree."
_ONE_FOR_ALL = "All gradients went as one message, so nothing could leave early: one message for each bucket."
_SINGLE = "One gradient went by itself. Join the gradients of a bucket: torch.cat of flattened ones."
_NO_GRADIENT = "Other ranks have a gradient for it: give this rank the mean too, even if it had none itself."
_NO_WAIT = "Nothing waited: call wait() on every handle."
_SUM = "That is the sum. The mean is the sum divided by the number of ranks."
_OWN = "These are this rank's own gradients: the averaged numbers never came back to .grad."
_OWN_DIVIDED = "This rank's own gradients, divided: read the row after wait(), not before."
_STARTS_AND_WAITS = "One start() for each bucket, and one wait() for each start()."
_AFTER_BACKWARD = "All messages left after the backward pass. Call start() in on_gradient, when a bucket is full."
_WAITS_EARLY = "Something waited inside the backward pass, so the next layer could not go on. Wait in finish()."
_PLACES = "Gradients came in another order on rank 1. The place of each in its row must not depend on that."
_BOTH_FULL = "Bucket 1 was full already. When bucket 0 becomes full, both start in the same call: use while, not if."
_AS_ZERO = "The missing gradient counts as zero; the others are averaged as before."


class _FinishedMessage:
    """The handle of a message of a single process, whose sum is the message itself."""

    def wait(self) -> None:
        """There is nothing to wait for."""


def _check_one_bucket(fn: Callable) -> None:
    """By itself, a bucket of two leaves with its second gradient"""
    bucket = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 3))]
    sizes: list[int] = []

    def start(flat_N: Tensor) -> _FinishedMessage:
        sizes.append(flat_N.numel())
        return _FinishedMessage()

    averager = fn([bucket], start, 1)
    if not all(callable(getattr(averager, name, None)) for name in ("on_gradient", "finish")):
        raise Wrong("a class with on_gradient() and finish()", averager)
    for parameter in bucket:
        if sizes:
            raise Wrong("no message before both gradients are there", f"{len(sizes)} with the first", _TOO_EARLY)
        parameter.grad = torch.full_like(parameter, 2.0)
        averager.on_gradient(parameter)
    averager.finish()
    if sizes != [5]:
        raise Wrong("one message of 5 numbers", f"messages of {sizes} numbers", "Put both gradients into one flat row.")
    gradient = bucket[1].grad
    assert gradient is not None
    if tuple(gradient.shape) != (1, 3):
        raise Wrong("a gradient of shape (1, 3)", f"shape {tuple(gradient.shape)}", _SHAPES)


def _check_waiting_bucket(fn: Callable) -> None:
    """A bucket that was full too early starts directly after the bucket before it"""
    buckets = [[nn.Parameter(torch.zeros(n))] for n in (2, 3)]
    sizes: list[int] = []

    def start(flat_N: Tensor) -> _FinishedMessage:
        sizes.append(flat_N.numel())
        return _FinishedMessage()

    averager = fn(buckets, start, 1)
    for bucket in reversed(buckets):
        bucket[0].grad = torch.ones_like(bucket[0])
        averager.on_gradient(bucket[0])
    if sizes == [2]:
        raise Wrong("buckets 0 and 1 start when bucket 0 is full", "only bucket 0 starts", _BOTH_FULL)
    averager.finish()


def _check_zeros(fn: Callable) -> None:
    """Zeros for a missing gradient are of the parameter's device and dtype"""
    for dtype, device in ((torch.bfloat16, "cpu"), (torch.float32, "meta")):
        bucket = [nn.Parameter(torch.zeros(n, dtype=dtype, device=device)) for n in (2, 3)]
        messages: list[Tensor] = []

        def start(flat_N: Tensor, messages: list[Tensor] = messages) -> _FinishedMessage:
            messages.append(flat_N)
            return _FinishedMessage()

        averager = fn([bucket], start, 1)
        bucket[0].grad = torch.ones_like(bucket[0])
        averager.on_gradient(bucket[0])
        try:
            averager.finish()
        except RuntimeError as error:
            first_line = str(error).split("\n")[0]
            raise Wrong(f"zeros on the device of the parameter ({device})", first_line, _ZEROS) from None
        kinds = [(str(message.dtype), message.device.type) for message in messages]
        if kinds != [(str(dtype), device)]:
            raise Wrong(f"one row of {dtype} on {device}", kinds, _ZEROS)


def _run(fn: Callable, scenario: Scenario, hang_hint: str = _UNSENT) -> list[Report]:
    """Return the reports of all ranks."""
    try:
        return run_on_ranks(train_on_rank, _WORLD_SIZE, fn, scenario, hang_hint=hang_hint)
    except RankError as error:
        if error.kind == "MessageError":
            size, bucket = error.message.split()
            raise _wrong_size(int(size), int(bucket)) from None
        if scenario.n_steps > 1:
            error.hint = _RESET
        raise


def _wrong_size(size: int, bucket: int) -> Wrong:
    """Return the error for a message that has not the size of its bucket."""
    sizes_of_buckets = [[parameter.numel() for parameter in parameters] for parameters in Net().buckets()]
    sizes = [sum(of_bucket) for of_bucket in sizes_of_buckets]
    hint = _FLAT_ROW
    if size in sizes:
        hint = _OUT_OF_TURN
    elif size == sum(sizes):
        hint = _ONE_FOR_ALL
    elif any(size in of_bucket for of_bucket in sizes_of_buckets):
        hint = _SINGLE
    return Wrong(f"{sizes[bucket]} numbers in message {bucket + 1} of a step", f"{size} numbers", hint)


def _flat(gradients: list) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def _check_mean(reports: list[Report], spare_on: tuple[int, ...] = (0, 1), hint: str = "") -> None:
    """The gradients of the first step must be the mean over the ranks on every rank."""
    for report in reports:
        for bucket in report.numbers("incomplete"):
            early = f"Bucket {bucket} left when another one was full. Send while the *next in turn* misses nothing."
            raise Wrong("a bucket that leaves with all its gradients", f"bucket {bucket} left without some", early)
    for rank, report in enumerate(reports):
        if any(gradient is None for gradient in report.gradients[0]):
            raise Wrong("a gradient for every parameter", f"None on rank {rank}", _NO_GRADIENT)
        if not report.numbers("wait"):
            raise Wrong("the sum, which is there after wait()", _flat(report.gradients[0]), _NO_WAIT)
    own = [_flat(own_gradients(Net(), 0, rank, rank in spare_on)) for rank in range(_WORLD_SIZE)]
    mean = torch.stack(own).mean(0)
    mistakes: list[Mistakes] = []
    for rank in range(_WORLD_SIZE):
        mistakes.append(
            [
                (mean * _WORLD_SIZE, _SUM),
                (mean / _WORLD_SIZE, "Divided twice."),
                (own[rank], _OWN),
                (own[rank] / _WORLD_SIZE, _OWN_DIVIDED),
            ]
        )
    gradients = [_flat(report.gradients[0]) for report in reports]
    expect_close_on_ranks(gradients, [mean] * _WORLD_SIZE, hint, mistakes, atol=1e-6)


def _check_average(fn: Callable) -> None:
    """On two ranks, every gradient is the mean, tied weights and all"""
    _check_mean(_run(fn, Scenario()))


def _check_messages(fn: Callable) -> None:
    """One message for each bucket; it leaves with the last gradient, while the backward pass goes on"""
    for report in _run(fn, Scenario()):
        for kind, name in (("start", "messages"), ("wait", "waits")):
            buckets = report.numbers(kind)
            if sorted(buckets) != [0, 1, 2]:
                raise Wrong("3 of them, one for each bucket", f"{name} of buckets {buckets}", _STARTS_AND_WAITS)
        _check_order(report.events)


def _check_order(events: list[Event]) -> None:
    """Messages must start with the last gradient of their bucket, and nothing may wait in the backward pass."""
    kinds = [event.kind for event in events]
    backward_ends_at = kinds.index("backward is over")
    starts = [position for position, kind in enumerate(kinds) if kind == "start"]
    if starts[0] > backward_ends_at:
        raise Wrong("the first message during the backward pass", "the first one in finish()", _AFTER_BACKWARD)
    if "wait" in kinds[:backward_ends_at]:
        raise Wrong("no wait() before the backward pass is over", "one in on_gradient", _WAITS_EARLY)
    n_gradients = [kinds[:start].count("gradient") for start in starts]
    if n_gradients != [3, 5, 7]:
        hint = "Send a bucket in the very call that completes it."
        raise Wrong("messages after gradients 3, 5 and 7", f"after gradients {n_gradients}", hint)


def _check_another_order(fn: Callable) -> None:
    """Gradients arrive in another order on rank 1; the messages leave in the same one"""
    _check_mean(_run(fn, Scenario(reversed_on=(1,))), hint=_PLACES)


def _check_missing_gradient(fn: Callable) -> None:
    """Rank 1 does not use the spare head: nobody hangs, and it counts as zero"""
    spare_on = (0,)
    reports = _run(fn, Scenario(spare_on=spare_on), hang_hint=_NEVER_FULL)
    _check_mean(reports, spare_on, _AS_ZERO)


def _check_training(fn: Callable) -> None:
    """After four updates both ranks hold the weights of one process"""
    expected = _train_in_one_process(_N_STEPS)
    reports = _run(fn, Scenario(n_steps=_N_STEPS), hang_hint=_RESET)
    weights = [report.weights for report in reports]
    expect_close_on_ranks(weights, [expected] * _WORLD_SIZE, _RESET, atol=1e-6)
    for report in reports:
        starts = _starts_in_backward(report.events)
        if starts != [3] * _N_STEPS:
            raise Wrong("3 messages during each backward pass", f"{starts} in steps 1 to {_N_STEPS}", _RESET)


def _train_in_one_process(n_steps: int) -> Tensor:
    """Return the weights after some updates with the mean gradients of all ranks."""
    net = Net()
    for step in range(n_steps):
        of_ranks = [own_gradients(net, step, rank) for rank in range(_WORLD_SIZE)]
        with torch.no_grad():
            for parameter, *gradients in zip(net.trained(), *of_ranks, strict=True):
                parameter -= LEARNING_RATE * sum(gradients) / _WORLD_SIZE
    return _flat([parameter.detach() for parameter in net.trained()])


def _starts_in_backward(events: list[Event]) -> list[int]:
    """Return the number of messages that start in each step before its backward pass is over."""
    starts = [0]
    for event in events:
        if event.kind == "start":
            starts[-1] += 1
        elif event.kind == "backward is over":
            starts.append(0)
    return starts[:-1]


EXERCISE = Exercise(
    name="averager",
    chapter="09",
    cases=(
        _check_one_bucket,
        _check_average,
        _check_messages,
        _check_another_order,
        _check_waiting_bucket,
        _check_missing_gradient,
        _check_zeros,
        _check_training,
    ),
    hints=(
        "What must a bucket remember between start() and finish()? Its flat row, and the handle that start() returned.",
        "When is a bucket full? May it leave then, if the one before it has not?",
        "Four things in finish(), in this order: what has not left leaves; wait; the mean; back into each .grad.",
    ),
    code=(
        "row = torch.cat([p.grad.flatten() for p in bucket])",
        "for p, part in zip(bucket, row.split([p.numel() for p in bucket])): p.grad = part.view_as(p)",
    ),
    deadline_s=180.0,
)
