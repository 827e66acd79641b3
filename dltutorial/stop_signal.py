"""A signal that asks a training to stop.

Slurm sends SIGUSR1 before the time limit of a job. A batch system or a person sends SIGTERM, and Ctrl-C is SIGINT.
Chapter 10 explains why a training should write a checkpoint then.
"""

import os
import signal
import time
from types import FrameType
from typing import Any

SECOND_CTRL_C_S = 2.0  # a terminal and torchrun both send SIGINT for one Ctrl-C, so an earlier signal does not count


class StopSignal:
    """Inside a ``with`` block, remember that a signal came, instead of ending the program.

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
        now_s = time.monotonic()
        is_second = self.received and now_s - self._received_at_s > SECOND_CTRL_C_S
        if number == signal.SIGINT and is_second:
            raise KeyboardInterrupt
        if number == signal.SIGINT and not self.received:
            os.write(2, b"stopping soon, with a checkpoint; press Ctrl-C again to end at once\n")
        if not self.received:
            self.received = True
            self._received_at_s = now_s

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
