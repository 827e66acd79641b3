"""The life of the worker processes of a loader: which signals they ignore, how they end, and what if one of them dies.

The workers of a ``DataLoader`` are child processes of the training process. This file handles three situations.

- A run is stopped. Slurm, torchrun and Ctrl-C send their signals to all processes of the run. The training process
  continues until it has saved a checkpoint, and until then it needs its workers. Therefore the workers ignore these
  signals.
- The program ends. Python then sends SIGTERM to the child processes, and waits until they have ended. It would wait
  forever, because the workers ignore SIGTERM. Therefore this file shuts down the workers first.
- A worker dies, for example because it is out of memory. The error becomes one line that says what to do.

The input is a ``DataLoader`` that was made with ``worker_init_fn=ignore_stop_signals``. The output is its batches.

Source: https://docs.pytorch.org/docs/stable/data.html, "Single- and Multi-process Data Loading".
"""

import atexit
import signal
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from dltutorial.errors import DataError, first_line


def ignore_stop_signals(worker: int) -> None:
    """Let a worker ignore the signals that Slurm, torchrun or Ctrl-C send to all processes of a training run.

    Args:
        worker: The number of the worker, which ``DataLoader`` passes. All workers do the same.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def iterate_then_end_workers(loader: DataLoader) -> Iterator[Tensor]:
    """Yield the batches of a loader, and end its workers when the caller is done or the program ends.

    A caller is done when it deletes or closes this generator, for example when its function returns.

    Args:
        loader: The loader. It may also have no workers. Then nothing is left to end.

    Raises:
        DataError: A worker died, for example because it was out of memory.
    """
    batches: Any = iter(loader)
    if loader.num_workers == 0:
        yield from batches
        return
    # The caller may still hold this generator when the program ends. Then ``finally`` below would run too late.
    atexit.register(batches._shutdown_workers)
    try:
        yield from batches
    except RuntimeError as error:
        message = first_line(error)
        if not message.startswith("DataLoader worker"):
            raise
        raise DataError(
            f"{message.rstrip('.')}; lower the number of workers or the batch size, or give it more memory"
        ) from None
    finally:
        atexit.unregister(batches._shutdown_workers)
        batches._shutdown_workers()
