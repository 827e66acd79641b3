"""torch's ``DataLoader`` with worker processes; whatever becomes of a worker is one line.

In: a data set, batches of its keys. Out: its batches, or a ``DataError``: the data are damaged, or a worker died or no
longer answers.
"""

import atexit
import contextlib
import signal
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
        DataError: as the module says; a worker that gives no batch in ``WORKER_DEADLINE_S`` counts as dead.
    """
    limits.refuse_too_many("workers", workers)
    loader = DataLoader(
        dataset, batch_sampler=keys, num_workers=workers, collate_fn=collate, worker_init_fn=_ignore_stop_signals,
        generator=torch.Generator().manual_seed(0),  # of the workers' own seeds, which nothing here uses
        pin_memory=torch.cuda.is_available(), timeout=WORKER_DEADLINE_S if workers else 0,
    )  # fmt: skip
    try:
        with workers_in_one_line():
            yield from _with_workers_ended(iter(loader))
    except DataError as error:  # out of a worker it comes wrapped in that process's traceback
        line = str(error).strip().splitlines()[-1]
        raise DataError(line.removeprefix(f"{DataError.__module__}.DataError: ")) from None
    except (ConnectionError, EOFError) as error:
        raise DataError(_gone(error)) from None


def _with_workers_ended(batches: Any) -> Iterator:
    """Yield the batches. The workers end after the last one, or with the program.

    They are killed, because they ignore the SIGTERM that torch sends.
    """

    def end() -> None:
        with contextlib.suppress(RuntimeError):  # a worker that died is reported by the batches
            getattr(batches, "_shutdown_workers", lambda: None)()
        for worker in getattr(batches, "_workers", ()):
            worker.kill()

    atexit.register(end)
    try:
        yield from batches
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
