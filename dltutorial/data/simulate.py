"""Simulate years and write them: from a ``Plan`` to files.

In: a plan and the numbers of years. Out: year files. Each year starts from random eddies of its own, is simulated on
a coarse grid until it has forgotten them, then on its own grid, and from then on a snapshot is kept every 12 hours.
The bytes of a year follow from the plan and its number, whichever process makes it and whatever is made beside it.
(GPUs and CPUs round differently: their years differ, as weather does, and their climate does not.)

Legend: B years side by side, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from dltutorial.data import dynamics, writing
from dltutorial.data.flow import coarsest
from dltutorial.data.weather import INTERVAL, Plan


def make_years(plan: Plan, files: Mapping[int, Path], device: str, tick: Callable[[], object]) -> None:
    """Simulate years and write each to its file; ``tick`` for each snapshot written.

    A GPU simulates years in groups. A group is always simulated whole, so that a year has the same neighbours, and
    hence the same rounding, after an interrupted run as in one that was not.

    Raises:
        DataError: a file cannot be written, or the simulation blew up.
    """
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)  # a second would round differently, and cost more than it brings on arrays this small
    try:
        for group in (group for group in _groups(plan, device) if not files.keys().isdisjoint(group)):
            wanted = {place: files[year] for place, year in enumerate(group) if year in files}
            with contextlib.ExitStack() as stack:
                about = plan.snapshots, plan.shape, {"digest": plan.digest}
                writers = {n: writing.year_writer(file, *about) for n, file in wanted.items()}
                appends = {n: stack.enter_context(writer) for n, writer in writers.items()}
                for x_BCHW in simulate(plan, group, device):
                    for place, append in appends.items():
                        append(x_BCHW[place].cpu().numpy())
                        tick()
    finally:
        torch.set_num_threads(threads)


def _groups(plan: Plan, device: str) -> Iterator[tuple[int, ...]]:
    """Numbers of years that are simulated side by side: on a CPU one, in its cache; on a GPU enough to fill it."""
    size = 1 if device == "cpu" else 16 if plan.flow.n_lat <= 128 else 4
    numbers = range(1, sum(plan.years) + 1)
    return (tuple(numbers[i : i + size]) for i in range(0, len(numbers), size))


@torch.inference_mode()
def simulate(plan: Plan, numbers: tuple[int, ...], device: str) -> Iterator[Tensor]:
    """Yield the snapshots (B, C, H, W), in SI units, of these years side by side."""
    coarse, fine = (dynamics.operators(flow, device) for flow in (coarsest(plan.flow), plan.flow))
    state_BSHK = dynamics.initial_state(coarse, [(plan.seed, number) for number in numbers])
    state_BSHK = _advance(state_BSHK, coarse, plan.spin_up)
    state_BSHK = _advance(dynamics.refine(state_BSHK, fine), fine, plan.settle)
    for _ in range(plan.snapshots):
        state_BSHK = _advance(state_BSHK, fine, INTERVAL)
        yield dynamics.fields(state_BSHK, fine)


def _advance(state_BSHK: Tensor, ops: dynamics.Operators, duration: float) -> Tensor:
    """Step until the duration is over, to the nearest step."""
    for _ in range(round(duration / ops.flow.step)):
        state_BSHK = dynamics.rk4_step(state_BSHK, ops)
    return state_BSHK


def main() -> None:
    """Do the job that ``weather.run_processes`` writes to standard input; say "snapshot" for each one stored.

    The process ends when its standard input closes; so it never outlives its parent, whatever becomes of that.
    """
    plan, files = pickle.load(sys.stdin.buffer)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, so that half a file is removed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    make_years(plan, files, "cpu", lambda: print("snapshot", flush=True))


def _end_with_parent() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock would be held at the end of the interpreter
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
