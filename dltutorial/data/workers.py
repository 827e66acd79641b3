"""torch's ``DataLoader`` with worker processes; whatever becomes of a worker is one line.

In: a data set, batches of its keys. Out: its batches, or a ``DataError``: the data are damaged, or a worker died or no
longer answers.
"""

import atexit
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dltutorial import limits
from dltutorial.data.formats import first_line
from dltutorial.errors import DataError

WORKER_DEADLINE_S = 300.0


def worker_batches(dataset: Dataset, keys: Iterable[list], workers: int, collate: Callable | None = None) -> Iterator:
    """Batches of ``dataset[key]``, collated by torch unless told how, read by worker processes; 0 reads here.

    Raises:
        DataError: as the module says, ``WORKER_DEADLINE_S`` after the last batch; or no more processes may be started.
    """
    limits.refuse_too_many("workers", workers)
    loader = DataLoader(
        dataset, batch_sampler=keys, num_workers=workers, collate_fn=collate, worker_init_fn=_ignore_stop_signals,
        generator=torch.Generator().manual_seed(0),  # of the workers' own seeds, which nothing here uses
        pin_memory=torch.cuda.is_available(), timeout=WORKER_DEADLINE_S if workers else 0,
    )  # fmt: skip
    try:
        with workers_in_one_line():
            yield from _in_time(_started(loader))
    except DataError as error:  # out of a worker it comes wrapped in that process's traceback
        line = str(error).strip().splitlines()[-1]
        raise DataError(line.removeprefix(f"{DataError.__module__}.DataError: ")) from None
    except (ConnectionError, EOFError) as error:
        raise DataError(_gone(error)) from None


def _started(loader: DataLoader) -> Iterator:
    """Start the workers where there is room for their threads: one that gets none says nothing, and is waited for."""
    n, tried = loader.num_workers, threading.Event()  # a worker and its two threads, one here that feeds it; two more
    trial = [threading.Thread(target=tried.wait) for _ in range(4 * n + 2 if n else 0)]
    told = f"no more processes may be started here (ulimit -u) for workers={n}; lower workers"
    try:
        for thread in trial:
            thread.start()
    except RuntimeError:
        raise DataError(told) from None
    finally:
        tried.set()
        for thread in filter(threading.Thread.is_alive, trial):
            thread.join()
    try:
        return iter(loader)
    except BlockingIOError:  # others have taken the room
        raise DataError(told) from None


def _in_time(batches: Any) -> Iterator:
    """The batches. The workers end with them or with the program; at last by force, as they ignore torch's SIGTERM."""
    workers, ended, since_s = getattr(batches, "_workers", ()), threading.Event(), time.monotonic()

    def end() -> None:
        nonlocal since_s
        since_s = min(since_s, time.monotonic())
        with contextlib.suppress(RuntimeError):  # one was late, and is killed just now
            getattr(batches, "_shutdown_workers", lambda: None)()
        for worker in workers:
            worker.kill()
        ended.set()

    def watch() -> None:  # torch's own limit is for the wait until a batch begins to come, not for its rest
        while not ended.wait(WORKER_DEADLINE_S / 10):
            for worker in workers if time.monotonic() - since_s > WORKER_DEADLINE_S else ():
                worker.kill()

    atexit.register(end)
    try:
        if workers:
            threading.Thread(target=watch, daemon=True).start()
        for batch in batches:
            since_s = float("inf")
            yield batch
            since_s = time.monotonic()
    except (RuntimeError, OSError, EOFError):
        if not workers or time.monotonic() - since_s < WORKER_DEADLINE_S:
            raise
        raise RuntimeError(f"DataLoader timed out: no batch came for {WORKER_DEADLINE_S:g} s") from None
    finally:
        atexit.unregister(end)
        end()


def _ignore_stop_signals(_worker: int) -> None:
    """A signal that asks a run to end reaches its workers, too; the run ends them, after its last update."""
    for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGINT"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


@contextlib.contextmanager
def workers_in_one_line() -> Iterator[None]:
    """Around what runs beside workers: torch reports a death in the midst of a step, too. DataError: one died."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader"):
            raise
        raise DataError(_gone(error)) from None


def _gone(error: Exception) -> str:
    """Why a worker died, as torch's data loader says: the signal, or that it does not answer."""
    why = first_line(error.__cause__ or error).rstrip(". ")
    return f"a loading process is gone: {why}; lower workers or the batch size, or give it more memory"
