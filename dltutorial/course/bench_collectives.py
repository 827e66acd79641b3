"""``dltutorial bench collectives``: sizes × ranks × algorithms × backends, on real ranks of this machine.

In: a preset, how often. Out: the time of each collective, with algorithm and bus bandwidth as nccl-tests defines them
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), both from the least time, and the bandwidth over
that of the backend's own all-reduce. What the α–β–γ model predicts stands beside the measurement for all ranks but the
fewest: those it is fitted to. Gloo is everywhere; NCCL needs a GPU for each rank; MPI needs mpi4py and an MPI.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dltutorial import machine
from dltutorial.course.bench_rows import Options, Row
from dltutorial.errors import CourseError
from dltutorial.profile.timing import Timing

if TYPE_CHECKING:
    from dltutorial.comm.cost import Regimes

NAMES = ("backend", "ring", "tree", "doubling", "server", "hierarchical")
ONE_WAY = ("broadcast", "reduce", "reduce_scatter", "all_gather")
NODE_SIZE = 2
_TURNS = 4  # for each repeat: only the least of many small times says what an algorithm costs
Found = Mapping[tuple[str, int], Timing]


def collectives(options: Options) -> Iterator[Row]:
    """Gloo first, then what else is here; what is not is said in a line."""
    machine.use_cores()
    small = options.preset.name == "smoke"
    ranks = (2, 4) if small else (2, 4, 8)
    sizes = [2**10, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26]
    yield from _backend("gloo", ranks, sizes, options)
    yield from _nccl(ranks, sizes, options)
    yield from _mpi(ranks, sizes, options)


def _backend(backend: str, ranks: tuple[int, ...], sizes: list[int], options: Options) -> Iterator[Row]:
    """All ranks of one backend; the first fits the prices, the others are predicted."""
    from dltutorial.comm import stopwatch

    regimes = None
    for p in ranks:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*ranks share")
            found = stopwatch.clock(
                (*NAMES, *ONE_WAY), p, sizes, _TURNS * options.repeats, NODE_SIZE, backend, timeout_s=600
            )
        yield from _rows(backend, p, found, regimes)
        regimes = regimes or _fitted(found, p)


def _nccl(ranks: tuple[int, ...], sizes: list[int], options: Options) -> Iterator[Row]:
    n_gpus = 0
    if machine.device() == "cuda":
        import torch

        n_gpus = torch.cuda.device_count()
    if possible := tuple(p for p in ranks if p <= n_gpus):
        yield from _backend("nccl", possible, sizes, options)
    else:
        print(f"NCCL: not available here (a rank needs a GPU of its own; {n_gpus} GPUs)")


def _mpi(ranks: tuple[int, ...], sizes: list[int], options: Options) -> Iterator[Row]:
    from dltutorial.comm import mpi

    regimes = None
    for p in ranks:
        try:
            found = mpi.clock((*NAMES, *ONE_WAY), p, sizes, _TURNS * options.repeats, NODE_SIZE)
        except CourseError as error:  # there is none, or it is not set up: the other backends' figures stand
            return print(error)
        yield from _rows("mpi", p, found, regimes)
        regimes = regimes or _fitted(found, p)


def _fitted(found: Found, p: int) -> "Regimes":
    """Prices of a machine whose ranks all share one lane, in two regimes; of our own algorithms only."""
    from dltutorial.comm.cost import fit_regimes
    from dltutorial.comm.counts import counts

    ours = [(n, counts(name, p, n, NODE_SIZE), t.best_s) for (name, n), t in found.items() if name != "backend"]
    return fit_regimes(ours)


def _rows(backend: str, p: int, found: Found, regimes: "Regimes | None") -> Iterator[Row]:
    from dltutorial.comm.counts import counts
    from dltutorial.comm.stopwatch import bus_bandwidth

    for (name, n), timing in found.items():
        more = {
            "least": f"{1e3 * timing.best_s:.3f} ms",
            "algbw, GB/s": f"{n / timing.best_s / 1e9:.3f}",
            "busbw, GB/s": f"{bus_bandwidth(name, p, n, timing.best_s) / 1e9:.3f}",
        }
        if name in NAMES:
            more["of the backend"] = f"{found['backend', n].best_s / timing.best_s:.2f}"
        own = regimes is not None and name != "backend"
        predicted = regimes.seconds(n, counts(name, p, n, NODE_SIZE)) if own else None
        if predicted:
            more["least / predicted"] = f"{timing.best_s / predicted:.2f}"
        what = "all_reduce of the backend" if name == "backend" else name
        yield Row(f"{backend}, {p} ranks, {_size(n)}, {what}", timing.samples_s, predicted=predicted, more=more)


def _size(n: int) -> str:
    return f"{n // 2**20} MiB" if n >= 2**20 else f"{n // 2**10} KiB"
