"""Simulate years and write them: from a ``Plan`` to files.

In: a plan and the numbers of years. Out: one file per year. Each year starts from its own random eddies. It is
simulated on a coarse grid until the initial state has no influence any more, then on the final grid. From then on a
snapshot is written every 12 hours.

The numbers of a year follow from the plan and the number of the year, whichever process makes it. (GPUs and CPUs round
differently, so their years differ. Their climate is the same.)

Legend: B years side by side, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
import os
import pickle
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
    """Simulate years and write each to its file.

    Args:
        plan: of the data set.
        files: the file of each year, by its number.
        device: cpu or cuda.
        tick: called for every snapshot that is written.

    Raises:
        DataError: The simulation gave NaN or infinity.
        OSError: A file cannot be written.
    """
    numbers = list(files)
    group_size = years_side_by_side(plan, device)
    for first in range(0, len(numbers), group_size):
        group = numbers[first : first + group_size]
        with contextlib.ExitStack() as stack:
            writers = [writing.year_writer(files[number], plan.snapshots, plan.shape) for number in group]
            appends = [stack.enter_context(writer) for writer in writers]
            for x_BCHW in simulate(plan, group, device):
                for append, x_CHW in zip(appends, x_BCHW.cpu().numpy(), strict=True):
                    append(x_CHW)
                    tick()


def years_side_by_side(plan: Plan, device: str) -> int:
    """How many years are simulated at once: on a CPU one, which fits its cache; on a GPU enough to fill it."""
    if device == "cpu":
        return 1
    return 16 if plan.flow.n_lat <= 128 else 4


@torch.inference_mode()
def simulate(plan: Plan, numbers: list[int], device: str) -> Iterator[Tensor]:
    """Yield the snapshots (B, C, H, W), in SI units, of these years side by side."""
    coarse = dynamics.operators(coarsest(plan.flow), device)
    fine = dynamics.operators(plan.flow, device)
    state_BSHK = dynamics.initial_state(coarse, [(plan.seed, number) for number in numbers])
    state_BSHK = advance(state_BSHK, coarse, plan.spin_up)
    state_BSHK = dynamics.refine(state_BSHK, fine)
    state_BSHK = advance(state_BSHK, fine, plan.settle)
    for _ in range(plan.snapshots):
        state_BSHK = advance(state_BSHK, fine, INTERVAL)
        yield dynamics.fields(state_BSHK, fine)


def advance(state_BSHK: Tensor, ops: dynamics.Operators, duration: float) -> Tensor:
    """Take time steps until the duration is over, rounded to a whole number of steps."""
    for _ in range(round(duration / ops.flow.step)):
        state_BSHK = dynamics.rk4_step(state_BSHK, ops)
    return state_BSHK


def main() -> None:
    """Simulate the years that ``weather.simulate_in_processes`` writes to standard input."""
    plan, files = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # more threads would round differently, and bring no speed on arrays this small
    make_years(plan, files, "cpu", lambda: print("snapshot", flush=True))


def _end_with_parent() -> None:
    """End this process when its standard input closes, because then the process that needs the years has ended."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
