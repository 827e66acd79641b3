"""A signal that asks a training run to stop.

    SIGUSR1    Slurm sends it before the time limit of a job, if the job script asks for it by --signal
    SIGTERM    a batch system or a person sends it to end a program
    SIGINT     a terminal sends it for Ctrl-C

Chapter 10 explains why a run should save a checkpoint then.
"""

import os
import signal
import time
from types import FrameType
from typing import Any

# For one Ctrl-C, the terminal and torchrun both send SIGINT. Therefore a SIGINT within this time after the first signal
# does not count as a second Ctrl-C.
SAME_KEY_PRESS_S = 2.0


class StopSignal:
    """Inside a ``with`` block, remember that a signal came, instead of ending the program. A later Ctrl-C ends it.

    Attributes:
        received: Whether this process has received one of the signals.
    """

    def __init__(self) -> None:
        self.received = False
        self._received_at_s = 0.0
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            self._previous_handlers[number] = signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed although the run is already stopping.
        """
        now_s = time.monotonic()
        if not self.received:
            self.received = True
            self._received_at_s = now_s
            if number == signal.SIGINT:
                # A signal handler must not use print, because the signal may have interrupted another print.
                os.write(2, b"stopping soon, with a checkpoint; wait, or press Ctrl-C again to end without one\n")
        elif number == signal.SIGINT and now_s - self._received_at_s > SAME_KEY_PRESS_S:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
