"""Run a function on N ranks of this machine, and return the value of each rank.

Input: a function, of a module or of a notebook cell, and its arguments.
Output: the list of the function's values, in the order of the ranks.

    def total():
        x = torch.ones(3) * dist.get_rank()
        dist.all_reduce(x)
        return x

    launch(total, 2)    # [tensor([1., 1., 1.]), tensor([1., 1., 1.])]

On each rank, the process group exists (gloo, or NCCL if every rank has its own GPU), and torchrun's variables are set.
Therefore ``RankInfo.from_env()`` and ``torch.distributed`` work at once. What the ranks print appears at once, as
``[rank 1] …``.

A rank must not be a fork of a kernel that has already computed, because the fork would lack the threads of torch and
wait for them without end. So the ranks are forks of multiprocessing's fork server. This process has imported torch and
has never computed. A fork of it starts in about 0.1 s, while a new Python process needs seconds to import torch.

Sources: https://docs.pytorch.org/docs/stable/distributed.html and
https://docs.python.org/3/library/multiprocessing.html, "Contexts and start methods".
"""

import contextlib
import linecache
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from types import ModuleType
from typing import Any

from dltutorial import errors, machine, node
from dltutorial.errors import CourseError
from dltutorial.launch import failures, worker

MOST_RANKS_PER_CORE = 64
GRACE_AFTER_CAUSE_S = 0.3  # after a failure, other ranks may still report theirs
GRACE_AFTER_EFFECT_S = 2.0  # after a lost connection, the rank that caused it may still report why
FIRST_LINE_OF_STACK_S = 1.0
NEXT_LINE_OF_STACK_S = 0.1


def launch(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 120.0,
    backend: str = "auto",
    **kwargs: Any,
) -> list[Any]:
    """Run ``function(*args, **kwargs)`` on ``world_size`` ranks of this machine.

    Args:
        function: Any function that cloudpickle can send, for example one of a notebook cell.
        world_size: The number of processes.
        *args: The arguments. They are the same on every rank.
        timeout_s: The deadline, in seconds after the start of the last rank. Ranks that have not returned are ended.
        backend: ``gloo``, ``nccl``, or ``auto``, which is NCCL if every rank has its own GPU.
        **kwargs: The keyword arguments. They are the same on every rank.

    Returns:
        What the ranks returned, in the order of the ranks.

    Raises:
        CourseError: An argument is wrong, or something cannot be sent.
        RankFailed: A rank raised an exception or died. The text has the traceback of this rank.
        RanksHang: The deadline has passed. The text has the line at which each rank waits.
    """
    node.refuse_on_login("starting ranks")
    backend = _checked_backend(function, world_size, timeout_s, backend)
    name = getattr(function, "__name__", "the function")
    call = worker.pickled((function, args, kwargs), f"{name} takes or refers to something")
    warm()
    ranks: list[_Rank] = []
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=world_size + 8) as listener:
            for rank in range(world_size):
                env = _environment_of(rank, world_size, listener.getsockname()[1])
                # Rank 0 gets the open socket of the store. Therefore no other program can take the port.
                socket_of_store = listener if rank == 0 else None
                task = worker.Assignment(call, backend, timeout_s + 60, env, _notebook_cells(), socket_of_store)
                ranks.append(_Rank(rank, task))
        _wait(ranks, timeout_s)
        failed = {rank.number: rank.failure for rank in ranks if rank.failure is not None}
        stacks = {} if failed else {rank.number: rank.stack() for rank in ranks if rank.is_running}
    finally:
        for started in ranks:
            started.kill()
        for started in ranks:
            started.close()
    if failed:
        raise failures.rank_failed(failed, world_size)
    if stacks:
        raise failures.ranks_hang(timeout_s, stacks, world_size)
    return [pickle.loads(rank.pickled_value) for rank in ranks]


def warm() -> None:
    """Start the fork server in the background, so that the first launch does not wait for its imports."""
    variables = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),  # a thread that waits releases its core
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # looking for GPUs must not start CUDA, which a fork cannot use
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # no C++ stack if a rank is lost
    }
    with _environment(variables):
        multiprocessing.set_forkserver_preload(["dltutorial.launch.fork_server"])
        forkserver.ensure_running()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the fork server, which must have them before it imports torch."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


class _Rank:
    """One rank as the caller sees it: a process, and three pipes from it.

    Attributes:
        number: The number of the rank.
        pickled_value: What the function returned. It is empty until then.
        failure: How the rank failed, or None.
    """

    def __init__(self, number: int, task: worker.Assignment) -> None:
        self.number = number
        self.pickled_value = b""
        self.failure: failures.Failure | None = None
        self._unfinished_line = b""
        self._control, control = multiprocessing.Pipe()  # the value or the failure
        self._output, output = multiprocessing.Pipe(duplex=False)  # what the rank prints
        self._stack, stack = multiprocessing.Pipe(duplex=False)  # where the rank is
        self._process = ForkServerProcess(target=worker.main, args=(task, control, output, stack))
        with _hidden_main():
            self._process.start()
        for end_of_rank in (control, output, stack):
            end_of_rank.close()
        self._readers = {
            self._control: self._read_control,
            self._output: self._read_output,
            self._process.sentinel: self._read_exit,
        }

    @property
    def is_running(self) -> bool:
        """Whether the rank has neither returned nor failed."""
        return not self.pickled_value and self.failure is None

    def sources(self) -> list[Any]:
        """Return the pipes that may still have something to read."""
        return list(self._readers)

    def read(self, source: Any) -> None:
        """Read from a pipe that has something to read, or that has closed."""
        has_more = self._readers[source]()
        if not has_more:
            del self._readers[source]

    def stack(self) -> str:
        """Return the stack of the rank. A signal handler writes it in small pieces, even inside C++ code."""
        os.kill(self._pid, worker.STACK_SIGNAL)
        text = b""
        patience_s = FIRST_LINE_OF_STACK_S
        while connection.wait([self._stack], patience_s):
            data = os.read(self._stack.fileno(), 2**16)
            if not data:
                break
            text += data
            patience_s = NEXT_LINE_OF_STACK_S
        return text.decode(errors="replace")

    def kill(self) -> None:
        """Kill the rank and the processes that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        self._process.kill()  # it may not have its own process group yet

    def close(self) -> None:
        """Wait for the end of the killed process, and print the rest of its output."""
        self._process.join()
        while self._output in self._readers and connection.wait([self._output], 0):
            self.read(self._output)
        if self._unfinished_line:
            self._print(b"\n")
        for pipe in (self._control, self._output, self._stack):
            pipe.close()

    @property
    def _pid(self) -> int:
        assert self._process.pid  # a started process has one
        return self._process.pid

    def _read_control(self) -> bool:
        try:
            kind, content = self._control.recv()
        except (EOFError, OSError):
            return False
        if kind == worker.VALUE:
            self.pickled_value = content
        else:
            self.failure = content
        return True

    def _read_output(self) -> bool:
        data = os.read(self._output.fileno(), 2**16)
        self._print(data)
        return bool(data)

    def _read_exit(self) -> bool:
        """Note a failure. A rank waits until it is killed, so a rank that ends earlier has failed."""
        while self._control in self._readers and connection.wait([self._control], 0):
            self.read(self._control)  # it may have sent why
        self._process.join()
        if self.failure is None:
            self.failure = failures.from_exit(self._process.exitcode or 0)
        return False

    def _print(self, data: bytes) -> None:
        """Print the lines that are complete. Of a progress bar, which rewrites its line, print the last state."""
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r").rsplit(b"\r")[-1].decode(errors="backslashreplace")
            sys.stdout.write(f"[rank {self.number}] {text}\n")
        sys.stdout.flush()


def _wait(ranks: list[_Rank], timeout_s: float) -> None:
    """Read from all ranks until each rank has returned, or one has failed, or the deadline has passed."""
    deadline_s = time.monotonic() + timeout_s
    while any(rank.is_running for rank in ranks):
        remaining_s = min(deadline_s, _end_after_failure_s(ranks)) - time.monotonic()
        if remaining_s <= 0:
            return
        rank_of_source = {source: rank for rank in ranks for source in rank.sources()}
        for source in connection.wait(list(rank_of_source), remaining_s):
            rank_of_source[source].read(source)


def _end_after_failure_s(ranks: list[_Rank]) -> float:
    """Return the time at which the launch ends because of a failure. It is infinite if no rank has failed."""
    failed = [rank.failure for rank in ranks if rank.failure is not None]
    if not failed:
        return float("inf")
    first_s = min(failure.at_s for failure in failed)
    if all(failure.is_effect for failure in failed):
        return first_s + GRACE_AFTER_EFFECT_S
    return first_s + GRACE_AFTER_CAUSE_S


def _checked_backend(function: Callable, world_size: int, timeout_s: float, backend: str) -> str:
    """Check the arguments of ``launch``, and return the backend that the ranks use."""
    if not callable(function):
        raise CourseError(f"launch needs a function first, not {type(function).__name__}; launch(train, 2, …)")
    n_cores = machine.cores()
    most = MOST_RANKS_PER_CORE * n_cores
    if not 1 <= world_size <= most:
        raise CourseError(f"world_size={world_size}: this machine runs at least 1 and at most {most} ranks")
    if not 0 < timeout_s < float("inf"):
        raise CourseError(f"timeout_s={timeout_s}: the deadline must be a number of seconds above 0")
    if backend not in ("auto", "gloo", "nccl"):
        raise CourseError(f"no backend {backend!r}; choose auto, gloo or nccl")
    n_gpus = machine.n_devices()
    if backend == "nccl" and n_gpus < world_size:
        raise CourseError(f"nccl needs a GPU for each rank: {world_size} ranks, {n_gpus} GPUs; use backend='gloo'")
    if world_size > n_cores:
        errors.warn(f"{world_size} ranks share {n_cores} cores: the results are right, but there is no speed-up")
    if backend == "auto":
        return "nccl" if n_gpus >= world_size else "gloo"
    return backend


def _environment_of(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the environment variables of a rank: those of the caller, and those that torchrun sets."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def _notebook_cells() -> dict[str, Any]:
    """Return the source code of the notebook's cells, so that a traceback can show their lines."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None}


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the module ``__main__``. Otherwise multiprocessing would run the caller's script again in each rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
