"""Simulate years and write them to files.

In: a ``Plan``, and the file of each year. Out: the files. Each year starts from its own random eddies. It is simulated
on a coarse grid until the initial state has no influence any more, and then on the final grid. From then on, a snapshot
is written every 12 hours.

The numbers of a year follow from the plan and the number of the year. They do not depend on the other years or on the
number of processes. (GPUs and CPUs round differently, so their years differ. Their climate is the same.)

Legend: B years side by side, C channels, H rows (latitude), W columns (longitude).
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import joblib
import torch
from joblib.externals.loky.process_executor import BrokenProcessPool
from torch import Tensor
from tqdm.auto import tqdm

from dltutorial import machine
from dltutorial.data import dynamics, writing
from dltutorial.data.flow import coarsest
from dltutorial.data.weather import INTERVAL, Plan
from dltutorial.errors import DataError


def make_years(plan: Plan, files: Mapping[int, Path], device: str) -> None:
    """Simulate years and write each to its file. On a CPU, each core simulates one year at a time.

    Args:
        plan: of the data set.
        files: the file of each year, by its number.
        device: cpu or cuda.

    Raises:
        DataError: The simulation gave NaN or infinity, or a process was killed.
        OSError: A file cannot be written.
    """
    numbers = list(files)
    group_size = years_side_by_side(plan, device)
    groups = [numbers[first : first + group_size] for first in range(0, len(numbers), group_size)]
    n_processes = 1
    if device == "cpu":
        n_processes = min(machine.rank_cores(), len(groups))
    # joblib starts processes that do not import the caller's program again, as ``multiprocessing`` would do. Therefore
    # this function can be called in a notebook, and in a script without a main guard.
    parallel = joblib.Parallel(n_jobs=n_processes, return_as="generator_unordered")
    calls = (joblib.delayed(make_group)(plan, group, files, device) for group in groups)
    with tqdm(desc="simulating", unit="year", total=len(numbers)) as bar:
        try:
            for n_years in parallel(calls):
                bar.update(n_years)
        except BrokenProcessPool as error:
            raise DataError("a simulating process was killed; give it more memory, and run again") from error


def make_group(plan: Plan, numbers: list[int], files: Mapping[int, Path], device: str) -> int:
    """Simulate some years side by side and write each to its file.

    Args:
        plan, files, device: as in ``make_years``.
        numbers: of the years.

    Returns:
        The number of years.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_thread(device))
        writers = [writing.year_writer(files[number], plan.snapshots, plan.shape) for number in numbers]
        appends = [stack.enter_context(writer) for writer in writers]
        for x_BCHW in simulate(plan, numbers, device):
            for append, x_CHW in zip(appends, x_BCHW.cpu().numpy(), strict=True):
                append(x_CHW)
    return len(numbers)


@contextlib.contextmanager
def one_thread(device: str) -> Iterator[None]:
    """Let a CPU compute with one thread. More threads would round differently, and are not faster on small arrays."""
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def years_side_by_side(plan: Plan, device: str) -> int:
    """Return how many years are simulated at once: on a CPU one, which fits its cache; on a GPU enough to fill it."""
    if device == "cpu":
        return 1
    if plan.flow.n_lat <= 128:
        return 16
    return 4


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
