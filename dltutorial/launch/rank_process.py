"""One rank as the caller of ``launch`` sees it: its process, its value or failure, and what it prints.

Input: the number of the rank, and the keyword arguments of ``worker.main``.
Output: the value that the function returned on this rank, pickled, or how the rank failed. What the rank prints appears
line by line, as ``[rank 1] …``.

Two pipes connect the caller and the rank. The rank sends its result through one of them, and what it prints through
the other one. A name with ``_caller_end`` or ``_rank_end`` says whose end of the pipe it is.

Source: https://docs.python.org/3/library/multiprocessing.html, "Pipes and Queues".
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from dltutorial.launch import failures


class RankProcess:
    """One rank as the caller sees it.

    Attributes:
        number: The number of the rank.
        process: Its process. It stays until the caller kills it.
        result_caller_end: The caller's end of the pipe through which the value or the failure arrives.
        stack_trace_file: The file to which the rank writes its stack trace after ``failures.STACK_TRACE_SIGNAL``.
        pickled_value: What the function returned. It is empty until then.
        failure: How the rank failed, or None.
    """

    def __init__(self, number: int, folder: Path, worker_arguments: dict[str, Any]) -> None:
        """Start the rank.

        Args:
            number: The number of the rank.
            folder: The folder for the file of its stack trace.
            worker_arguments: The arguments of ``worker.main``, without the pipes and the file of the stack trace.
        """
        self.number = number
        self.stack_trace_file = folder / f"stack-{number}"
        self.stack_trace_file.touch()  # it stays empty if the rank dies before it can write its stack trace
        self.pickled_value = b""
        self.failure: failures.Failure | None = None
        self.result_caller_end, result_rank_end = multiprocessing.Pipe()
        output_caller_end, output_rank_end = multiprocessing.Pipe(duplex=False)
        own_arguments = {
            "result_rank_end": result_rank_end,
            "output_rank_end": output_rank_end,
            "stack_trace_file": self.stack_trace_file,
        }
        self.process = ForkServerProcess(target=_run_rank, kwargs=worker_arguments | own_arguments)
        # This closes our copies of the rank's ends, so that EOF arrives when the rank ends.
        with result_rank_end, output_rank_end, _empty_main():
            self.process.start()
        self._printer = threading.Thread(target=_print_lines, args=(number, output_caller_end), daemon=True)
        self._printer.start()

    @property
    def is_running(self) -> bool:
        """Whether the rank has neither returned nor failed."""
        return not self.pickled_value and self.failure is None

    def receive(self) -> None:
        """Receive the value or the failure. If the process has died without a message, this is the failure."""
        try:
            if self.result_caller_end.poll():
                self.pickled_value, self.failure = self.result_caller_end.recv()
                return
        except (EOFError, OSError):  # the rank has closed the pipe because it ends
            pass
        # A process that has closed its pipe ends at once, unless its end hangs, for example in a driver. Then this rank
        # has failed, too, and ``launch`` kills it.
        self.process.join(timeout=10.0)
        self.failure = failures.from_exit(self.process.exitcode)

    def request_stack_trace(self) -> None:
        """Let the rank write its stack trace to its file. A signal handler writes it, also while the rank runs C++."""
        assert self.process.pid  # a started process has one
        with contextlib.suppress(ProcessLookupError):  # the rank has just died
            os.kill(self.process.pid, failures.STACK_TRACE_SIGNAL)

    def kill(self) -> None:
        """Kill the rank and the processes that it has started."""
        assert self.process.pid
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()  # it may not have its own process group yet

    def close(self) -> None:
        """Wait for the end of the killed process, and for the rest of its output."""
        self.process.join()
        self._printer.join(timeout=1.0)
        self.result_caller_end.close()


def _run_rank(**worker_arguments: Any) -> None:
    """Be one rank. The fork server has imported the worker and torch already, and the caller need not import them."""
    from dltutorial.launch import worker

    worker.main(**worker_arguments)


def _print_lines(rank: int, output_caller_end: connection.Connection) -> None:
    """Print what a rank prints, line by line. Of a progress bar, which rewrites its line, print the last state."""
    with output_caller_end:
        file_descriptor = output_caller_end.fileno()
        with open(file_descriptor, encoding="utf-8", errors="backslashreplace", newline="\n", closefd=False) as file:
            for line in file:
                text = line.rstrip("\r\n").rpartition("\r")[2]
                sys.stdout.write(f"[rank {rank}] {text}\n")  # one write, because several ranks print at the same time
                sys.stdout.flush()


@contextlib.contextmanager
def _empty_main() -> Iterator[None]:
    """Replace the module ``__main__`` by an empty one, while a rank starts.

    multiprocessing runs the file of ``__main__`` again in each new process. Without this, a script that calls
    ``launch`` would call it again in each rank. An empty module has no file, so nothing is run.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
