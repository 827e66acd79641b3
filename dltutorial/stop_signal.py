"""A signal that asks a training to stop.

Slurm sends SIGUSR1 before the time limit of a job. A batch system or a person sends SIGTERM, and Ctrl-C is SIGINT.
Chapter 10 explains why a training should write a checkpoint then.
"""

import signal
from types import FrameType
from typing import Any


class StopSignal:
    """Inside a ``with`` block, remember that a signal came, instead of ending the program.

    Attributes:
        received: Whether this process has received one of the signals.
    """

    def __init__(self) -> None:
        self.received = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            self._previous_handlers[number] = signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends the program at once

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
