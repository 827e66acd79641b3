"""Pipeline schedules as data: for each rank, the list of what it does, in order.

Inputs are the number of ranks and the number of micro-batches. The output is a schedule. It has one list of *actions*
for each rank. An action is a forward or backward pass of one micro-batch through one stage. If there are p ranks, rank
r holds the stages r, p + r, 2 p + r, …. In all schedules except ``interleaved``, each rank has one stage.

    F   the forward pass, which saves activations
    B   the backward pass. In ``zero_bubble`` it computes only the gradient of the stage's input.
    W   the second part of the backward pass in ``zero_bubble``: the gradients of the weights. No rank waits for them.

Here are two schedules of two ranks with three micro-batches, if B takes twice as long as F. Time runs to the right, and
dots are idle time.

    GPipe    rank 0   F0 F1 F2 ·· ·· ·· B0--- B1--- B2---      rank 0 holds activations of 3 micro-batches
             rank 1   ·· F0 F1 F2 B0--- B1--- B2--- ·· ··

    1F1B     rank 0   F0 F1 ·· ·· B0--- F2 B1--- ·· B2---      rank 0 holds activations of 2 micro-batches
             rank 1   ·· F0 B0--- F1 B1--- F2 B2--- ·· ··

- :func:`simulate` simulates a schedule, and finds a deadlock before ranks run it.
- :func:`bubble_fraction` returns the share of the ranks' time in which they are idle.
- :func:`max_in_flight` counts the micro-batches whose activations a rank holds.

Legend: p is ``n_ranks``, m is ``n_micro_batches``, and v is ``n_virtual_stages``, the number of virtual stages on each
rank. The letters are those of Narayanan et al.

Sources: Huang et al. 2019 (GPipe, arXiv:1811.06965), Narayanan et al. 2021 (1F1B and interleaved, arXiv:2104.04473),
Qi et al. 2023 (zero bubble, arXiv:2401.10241).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dltutorial.errors import CourseError


class Action(NamedTuple):
    """One box in the drawing of a schedule: the kind is F, B or W. Micro-batches and stages are numbered from 0."""

    kind: str
    micro_batch: int
    stage: int


class Span(NamedTuple):
    """An action, with the times in seconds at which it started and ended."""

    action: Action
    start_s: float
    end_s: float


Schedule = list[list[Action]]  # the actions of rank 0, of rank 1, …


def gpipe(n_ranks: int, n_micro_batches: int) -> Schedule:
    """Return the schedule in which each rank does all forward passes first, and then all backward passes."""
    schedule = []
    for rank in range(n_ranks):
        forward = [Action("F", micro_batch, rank) for micro_batch in range(n_micro_batches)]
        backward = [Action("B", micro_batch, rank) for micro_batch in range(n_micro_batches)]
        schedule.append(forward + backward)
    return schedule


def one_f_one_b(n_ranks: int, n_micro_batches: int) -> Schedule:
    """Return the schedule that alternates one forward and one backward pass after a short warm-up.

    In the warm-up, rank r does p − r − 1 forward passes. These passes fill the later stages before the first gradient
    comes back.
    """
    schedule = []
    for rank in range(n_ranks):
        forward = [Action("F", micro_batch, rank) for micro_batch in range(n_micro_batches)]
        backward = [Action("B", micro_batch, rank) for micro_batch in range(n_micro_batches)]
        schedule.append(alternate(forward, backward, n_warm_up=n_ranks - rank - 1))
    return schedule


def interleaved(n_ranks: int, n_micro_batches: int, n_virtual_stages: int = 2) -> Schedule:
    """Return 1F1B for v virtual stages on each rank. Each micro-batch passes through all ranks v times.

    Args:
        n_ranks: The number of ranks.
        n_micro_batches: The number of micro-batches. They pass through the stages in groups of p. Therefore this number
            must be a multiple of p.
        n_virtual_stages: The number of stages on each rank, at least 2. Stages of one rank are p apart.

    Returns:
        The actions of each rank.

    Raises:
        CourseError: The number of micro-batches is no multiple of the number of ranks.
    """
    if n_micro_batches % n_ranks != 0:
        raise CourseError(
            f"{n_micro_batches} micro-batches are not groups of {n_ranks}, as interleaving needs; "
            f"take a multiple of {n_ranks}"
        )
    schedule = []
    for rank in range(n_ranks):
        stages = [n_ranks * virtual_stage + rank for virtual_stage in range(n_virtual_stages)]
        forward = passes_in_groups("F", n_ranks, n_micro_batches, stages)
        backward = passes_in_groups("B", n_ranks, n_micro_batches, stages[::-1])
        # First, p micro-batches pass through each stage of this rank but its last one. Then the rank continues while
        # micro-batch 0 moves on to the last rank (p - rank - 1 passes), and while its gradient comes back (as many).
        n_warm_up = (n_virtual_stages - 1) * n_ranks + 2 * (n_ranks - rank - 1)
        schedule.append(alternate(forward, backward, n_warm_up))
    return schedule


def passes_in_groups(kind: str, n_ranks: int, n_micro_batches: int, stages: Sequence[int]) -> list[Action]:
    """Return all passes of a rank: each group of p micro-batches passes through one stage after the other."""
    actions = []
    for first in range(0, n_micro_batches, n_ranks):
        for stage in stages:
            actions += [Action(kind, micro_batch, stage) for micro_batch in range(first, first + n_ranks)]
    return actions


def alternate(forward: list[Action], backward: list[Action], n_warm_up: int) -> list[Action]:
    """Return some forward passes, then a forward and a backward pass in turn, then the remaining backward passes."""
    actions = forward[:n_warm_up]
    after_warm_up = forward[n_warm_up:]
    for one_forward, one_backward in zip(after_warm_up, backward, strict=False):
        actions += [one_forward, one_backward]
    return actions + backward[len(after_warm_up) :]


def zero_bubble(n_ranks: int, n_micro_batches: int) -> Schedule:
    """Return ZB-H1, which is 1F1B with the gradients of the weights in actions of their own.

    These actions fill the time in which a rank would be idle.

    On rank r, W of micro-batch i follows B of micro-batch i + r. Therefore every rank holds min(m, p) micro-batches, as
    rank 0 does in 1F1B.
    """
    schedule = []
    for rank in range(n_ranks):
        n_warm_up = min(n_micro_batches, n_ranks - rank - 1)
        actions = [Action("F", micro_batch, rank) for micro_batch in range(n_warm_up)]
        for step in range(n_micro_batches + rank):
            if n_warm_up + step < n_micro_batches:
                actions.append(Action("F", n_warm_up + step, rank))
            if step < n_micro_batches:
                actions.append(Action("B", step, rank))
            if step >= rank:
                actions.append(Action("W", step - rank, rank))
        schedule.append(actions)
    return schedule


def dependencies(action: Action, n_stages: int) -> list[Action]:
    """Return the actions that must end before this action can start."""
    kind, micro_batch, stage = action
    if kind == "W":
        return [Action("B", micro_batch, stage)]
    required = []
    if kind == "F" and stage > 0:
        required.append(Action("F", micro_batch, stage - 1))
    if kind == "B":
        required.append(Action("F", micro_batch, stage))
        if stage < n_stages - 1:
            required.append(Action("B", micro_batch, stage + 1))
    return required


def simulate(schedule: Schedule, seconds: Mapping[str, float]) -> list[list[Span]]:
    """Simulate a schedule, with communication that takes no time.

    Args:
        schedule: The actions of each rank.
        seconds: The duration of an action, for each kind.

    Returns:
        The actions of each rank with their times.

    Raises:
        CourseError: The ranks are in a deadlock. The message names the action that each rank waits to start.
    """
    n_stages = 1 + max(action.stage for actions in schedule for action in actions)
    spans: list[list[Span]] = [[] for _ in schedule]
    end_s_of: dict[Action, float] = {}
    while any(len(done) < len(actions) for done, actions in zip(spans, schedule, strict=True)):
        n_before = len(end_s_of)
        for done, actions in zip(spans, schedule, strict=True):
            run_ready_actions(actions, done, end_s_of, seconds, n_stages)
        if len(end_s_of) == n_before:
            raise CourseError(_deadlock_message(schedule, spans))
    return spans


def run_ready_actions(
    actions: Sequence[Action],
    done: list[Span],
    end_s_of: dict[Action, float],
    seconds: Mapping[str, float],
    n_stages: int,
) -> None:
    """Simulate the next actions of one rank, until one of them needs an action that has not ended."""
    for action in actions[len(done) :]:
        required = dependencies(action, n_stages)
        if not all(other in end_s_of for other in required):
            return
        start_s = max((end_s_of[other] for other in required), default=0.0)
        if done:
            start_s = max(start_s, done[-1].end_s)
        end_s_of[action] = start_s + seconds[action.kind]
        done.append(Span(action, start_s, end_s_of[action]))


def _deadlock_message(schedule: Schedule, spans: Sequence[Sequence[Span]]) -> str:
    """Name the action that each waiting rank cannot start."""
    waiting = []
    for rank, (actions, done) in enumerate(zip(schedule, spans, strict=True)):
        if len(done) < len(actions):
            action = actions[len(done)]
            waiting.append(f"rank {rank} at {action.kind}{action.micro_batch} of stage {action.stage}")
    return f"the ranks wait for each other for ever: {'; '.join(waiting)}; change the schedule"


def bubble_fraction(spans: Sequence[Sequence[Span]]) -> float:
    """Return the idle share of the time of all ranks, from the first start to the last end."""
    all_spans = [span for rank_spans in spans for span in rank_spans]
    first_start_s = min(span.start_s for span in all_spans)
    last_end_s = max(span.end_s for span in all_spans)
    busy_s = sum(span.end_s - span.start_s for span in all_spans)
    return 1 - busy_s / (len(spans) * (last_end_s - first_start_s))


def max_in_flight(actions: Sequence[Action]) -> int:
    """Return the largest number of activations that a rank holds at once, one for each micro-batch and stage."""
    kinds = [action.kind for action in actions]
    last_kind = "W" if "W" in kinds else "B"  # it frees the activations
    n_held = 0
    n_held_after_action = [0]
    for kind in kinds:
        if kind == "F":
            n_held += 1
        if kind == last_kind:
            n_held -= 1
        n_held_after_action.append(n_held)
    return max(n_held_after_action)
