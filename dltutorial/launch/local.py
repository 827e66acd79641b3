"""Run a function on N ranks of this machine, and get every rank's value.

In: a function, of a library or of a notebook cell, and its arguments. Out: the list of its values, by rank. Inside,
the process group is there (gloo, or NCCL with a GPU for each rank) and torchrun's variables are set, so
``RankInfo.from_env()`` and ``torch.distributed`` work at once. The function neither makes nor destroys the group.

    def total():
        x = torch.ones(3) * dist.get_rank()
        dist.all_reduce(x)
        return x

    launch(total, 2)    # [tensor([1., 1., 1.]), tensor([1., 1., 1.])]

What the ranks print appears at once, as ``[rank 1] …``. A kernel that has computed must not fork: the threads of its
torch would be missing in the child, which waits for them for ever. So ranks come from multiprocessing's fork server,
a process that has torch imported and has never computed.

What a rank has started ends with the launch. On Linux that holds for children in sessions of their own, too: the fork
server adopts them. Elsewhere these may stay, as may what a container's or Slurm's daemon has started for a rank.

Sources: https://docs.pytorch.org/docs/stable/distributed.html,
https://docs.python.org/3/library/multiprocessing.html ("Contexts and start methods")
"""

import contextlib
import linecache
import multiprocessing
import numbers
import os
import pickle
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection, forkserver, resource_tracker, util
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from dltutorial import errors, machine, node, paths
from dltutorial.errors import CourseError
from dltutorial.launch import failures, worker

LIMIT_BYTES = 2**28  # of the arguments, and of each value
LONGEST_S = 31 * 24 * 3600
_GRACE_S = 0.3  # after an error, for others that may tell more …
_EFFECT_GRACE_S = 2.0  # … and after one that only says that another rank is gone
_LONGEST_LINE = 2**20  # bytes that a rank prints without a line's end
_RANK_MB = 24  # an empty rank's own memory; most is shared
_RANK_FILES, _SPARE_FILES = 5, 32  # open here for each rank, and for the rest of this program
_LONGEST_FOLDER = 70  # characters of TMPDIR; multiprocessing adds about 35
_WATCH_S = 0.5  # between two looks whether the fork server is stopped
_END_S = 10.0  # for the system to end processes that are killed
_STARTING = threading.Lock()


def launch(
    function: Callable[..., Any], world_size: int, *args: Any,
    timeout_s: float = 120.0, backend: str = "auto", **kwargs: Any,
) -> list[Any]:  # fmt: skip
    """Run ``function(*args, **kwargs)`` on ``world_size`` ranks of this machine.

    Args:
        function: any function that cloudpickle can send, also one of a notebook cell.
        world_size: number of processes.
        *args: the same for every rank.
        timeout_s: this long after the start of the last rank, those that have not returned are ended.
        backend: gloo, nccl, or auto (nccl if every rank has a GPU of its own).
        **kwargs: the same for every rank.

    Returns:
        What the ranks returned, by rank.

    Raises:
        CourseError: an argument that cannot be, or something that cannot be sent.
        RankFailed: a rank raised, was killed, or ended early; with that rank's traceback.
        RanksHang: the deadline has passed; with the line at which each rank waits.
    """
    if not callable(function):
        raise CourseError(f"launch needs a function first, not {type(function).__name__}; launch(train, 2, …)")
    backend = _checked(world_size, timeout_s, backend)
    what = f"{getattr(function, '__name__', 'the function')} takes or refers to something"
    call = worker.packed((function, args, kwargs), what, LIMIT_BYTES)
    with _wakeful_server(), contextlib.closing(_Ranks(world_size, timeout_s)) as ranks:
        ranks.start(call, backend)
        return [_unpacked(value, f"rank {rank} of {world_size}") for rank, value in enumerate(ranks.results())]


def warm() -> None:
    """Start the fork server now, in the background, so that the first launch does not wait for its imports."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:  # a standard stream that is closed: its number must not
        os.set_inheritable(nowhere, True)  # be that of one of the server's pipes, which it would close
    os.close(nowhere)
    known_before_torch_is_loaded = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONSAFEPATH": "1",
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),  # a thread that waits gives its core away
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(paths.cache_dir() / "compiled")),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a look for GPUs must not start CUDA, which no fork survives
        worker.SOCKETS: (sockets := _sockets()),
    }
    _stop_unreachable_server()
    Path(sockets).mkdir(mode=0o700, parents=True, exist_ok=True)  # an earlier server may have removed it
    with _STARTING, _environment(known_before_torch_is_loaded):
        resource_tracker.ensure_running()  # at its start it unblocks SIGINT, so it comes first
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the server begins with it, too
        try:
            multiprocessing.set_forkserver_preload(["dltutorial.launch.fork_server"])
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that start inside ``with``; afterwards they are as before."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _sockets() -> str:
    """The folder of multiprocessing's sockets; a path has at most 107 bytes, so a long TMPDIR gives way to /tmp."""
    settings = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if not settings.get("tempdir"):
        parent = tempfile.gettempdir()
        made = tempfile.mkdtemp(prefix="ranks-", dir=parent if len(parent) <= _LONGEST_FOLDER else "/tmp")
        util.Finalize(None, shutil.rmtree, [made, True], exitpriority=-100)  # it may be gone by then
        settings["tempdir"] = made
    return settings["tempdir"]


def _stop_unreachable_server() -> None:
    """End a fork server whose socket somebody has removed, say with all temporary files: then a new one starts."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    if multiprocessing.parent_process() and server._forkserver_pid not in {p.pid for p in psutil.Process().children()}:
        server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None  # it was our parent's
    if server._forkserver_address and not Path(server._forkserver_address).exists():
        with contextlib.suppress(FileNotFoundError):  # it removes its socket last
            server._stop()


@contextlib.contextmanager
def _wakeful_server() -> Iterator[None]:
    """Inside ``with``, a fork server that somebody stops (SIGSTOP) goes on: no rank begins or ends without it."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_S):
            with contextlib.suppress(psutil.Error):
                server = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
                if server.status() == psutil.STATUS_STOPPED:
                    server.resume()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


class _Ranks:
    """The ranks of one launch, from their start to the end of the last: one loop that listens to all of them.

    It runs in the caller's thread, so what ranks print lands in the caller's cell and an interrupt ends it.
    """

    def __init__(self, world_size: int, timeout_s: float) -> None:
        self._world_size, self._timeout_s = world_size, timeout_s
        self._processes: list[ForkServerProcess] = []
        self._controls, self._outputs, self._stacks = (list[connection.Connection]() for _ in range(3))
        self._hear: dict[Any, Callable[[], bool]] = {}  # what may speak: who takes it, and says whether more may come
        self._values: dict[int, bytes] = {}
        self._failures: dict[int, failures.Failure] = {}
        self._rest = [b""] * world_size  # of what each has printed: the line that is not whole yet
        self._is_unheard, self._deadline_s = False, float("inf")  # until the ranks run

    def start(self, call: bytes, backend: str) -> None:
        """Start all ranks; rank 0 takes the store's listening socket along, so nobody can take its port."""
        warm()
        try:
            listener = socket.create_server(("127.0.0.1", 0), backlog=self._world_size + 8)
        except OSError as error:
            told = f"no port of 127.0.0.1 is free for the ranks to meet ({error.strerror}); end programs that hold many"
            raise CourseError(told) from error
        with listener:
            for rank in range(self._world_size):
                task = self._task(rank, call, backend, listener.getsockname()[1])
                self._add(rank, task, listener if rank == 0 else None)
        self._deadline_s = time.monotonic() + self._timeout_s

    def results(self) -> list[bytes]:
        """Listen until every rank has returned, one has failed, or the deadline has passed.

        Raises:
            RankFailed, RanksHang: as ``launch``.
        """
        while self._waiting() and self._listen(self._until_s()):
            pass
        stacks = {} if self._failures else self._ask_where(self._waiting())
        self.close()
        if self._failures:
            raise failures.as_exception(self._failures, self._world_size)
        if stacks:
            raise failures.hang(self._timeout_s, stacks, self._world_size)
        return [self._values[rank] for rank in range(self._world_size)]

    def close(self) -> None:
        """Kill all ranks with what they have started, wait for their end, print their last words."""
        self._processes = [process for process in self._processes if process.pid]
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(_pid(process), signal.SIGKILL)
            process.kill()  # it may not have got a process group yet
        until_s = time.monotonic() + _END_S
        while self._processes:  # an interrupt may come in between, then this is called again
            process = self._processes.pop()
            process.join(max(0.0, until_s - time.monotonic()))
            if process.exitcode is None:
                raise CourseError(f"process {process.pid} of a rank does not end; restart the kernel")
            process.close()
        _end_strays()
        for rank, output in enumerate(self._outputs):
            while connection.wait([output], 0) and self._hear_output(rank):
                pass
            if self._rest[rank]:
                self._print(rank, b"\n")
        for pipe in (*self._controls, *self._outputs, *self._stacks):
            pipe.close()
        self._outputs.clear()

    def _task(self, rank: int, call: bytes, backend: str, port: int) -> worker.Assignment:
        size = str(self._world_size)
        env = dict(os.environ) | {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
        env |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        group_timeout_s = self._timeout_s + 60  # the launch ends before a collective gives up
        cells = {name: entry for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None}
        return worker.Assignment(call, LIMIT_BYTES, backend, group_timeout_s, env, cells)

    def _add(self, rank: int, task: worker.Assignment, listener: socket.socket | None) -> None:
        control, its_control = multiprocessing.Pipe()
        output, its_output = multiprocessing.Pipe(duplex=False)
        stack, its_stack = multiprocessing.Pipe(duplex=False)
        process = ForkServerProcess(target=worker.main, args=(task, its_control, its_output, its_stack, listener))
        self._processes.append(process)
        self._controls.append(control)
        self._outputs.append(output)
        self._stacks.append(stack)
        try:
            with _no_main():
                process.start()
        except (OSError, EOFError) as error:
            told = f"the fork server of the ranks does not run ({error!r}); does `import torch` work? then run again"
            raise CourseError(told) from error
        finally:
            for its_end in (its_control, its_output, its_stack):
                its_end.close()
        self._hear |= {
            control: lambda: self._hear_control(rank), output: lambda: self._hear_output(rank),
            process.sentinel: lambda: self._hear_end(rank),
        }  # fmt: skip

    def _waiting(self) -> list[int]:
        """Ranks that have neither returned nor failed."""
        return [rank for rank in range(self._world_size) if rank not in self._values and rank not in self._failures]

    def _until_s(self) -> float:
        if not self._failures:
            return self._deadline_s
        first_s = min(failure.at_s for failure in self._failures.values())
        only_effects = all(failure.is_effect for failure in self._failures.values())
        return min(self._deadline_s, first_s + (_EFFECT_GRACE_S if only_effects else _GRACE_S))

    def _listen(self, until_s: float) -> bool:
        """Take what comes next; False when ``until_s`` has passed."""
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        for source in connection.wait(list(self._hear), min(left_s, 3600)):
            if not self._hear[source]():
                del self._hear[source]
        return True

    def _hear_control(self, rank: int) -> bool:
        try:
            kind, payload = self._controls[rank].recv()
        except (EOFError, OSError):
            return False
        if kind == worker.VALUE:
            self._values[rank] = payload
        else:
            self._failures[rank] = payload
        return True

    def _hear_output(self, rank: int) -> bool:
        data = os.read(self._outputs[rank].fileno(), 2**16)
        self._print(rank, data)
        return bool(data)

    def _print(self, rank: int, data: bytes) -> None:
        """Print the lines that are now whole, never two mixed; a bar that rewrites its line comes as it last looked."""
        *lines, self._rest[rank] = (self._rest[rank] + data).split(b"\n")
        if len(self._rest[rank]) > _LONGEST_LINE:
            lines, self._rest[rank] = [*lines, self._rest[rank]], b""
        texts = [line.rstrip(b"\r").rsplit(b"\r")[-1].decode(errors="backslashreplace") for line in lines]
        out, said = sys.stdout, "".join(f"[rank {rank}] {text}\n" for text in texts)
        if out and not self._is_unheard:
            encoding = getattr(out, "encoding", None) or "utf-8"
            try:
                out.write(said.encode(encoding, "replace").decode(encoding))
                out.flush()
            except OSError:  # nobody reads it any more (`| head`), or its disk is full: what the ranks return is kept
                self._is_unheard = True

    def _hear_end(self, rank: int) -> bool:
        """A rank stays until it is ended; one that ends before has failed, and may have said why."""
        while connection.wait([self._controls[rank]], 0) and self._hear_control(rank):
            pass
        self._processes[rank].join()
        if rank not in self._failures:
            self._failures[rank] = failures.from_exit(self._processes[rank].exitcode or 0)
        return False

    def _ask_where(self, ranks: list[int]) -> dict[int, str]:
        """Where ranks are; their signal handlers write it, even inside C++ code, in many small pieces."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(self._processes[rank]), worker.WHERE_SIGNAL)
        said = dict.fromkeys(ranks, b"")
        asked: dict[Any, int] = {self._stacks[rank]: rank for rank in ranks}
        while asked and (ready := connection.wait(list(asked), 0.1 if all(said.values()) else 1.0)):
            for pipe in ready:
                data = os.read(self._stacks[asked[pipe]].fileno(), 2**16)
                said[asked[pipe]] += data
                if not data:
                    del asked[pipe]
        return {rank: text.decode(errors="replace") for rank, text in said.items()}


def _pid(process: ForkServerProcess) -> int:
    assert process.pid, "0 would be this process's own group"
    return process.pid


def _end_strays() -> None:
    """Kill what ended ranks have left: the fork server has adopted it, and its other children are ranks at work."""
    if not (server_pid := forkserver._forkserver._forkserver_pid):  # type: ignore[attr-defined]
        return  # it did not start; psutil would take "none" for this process
    with _STARTING, contextlib.suppress(psutil.Error):
        server = psutil.Process(server_pid)
        ranks = {process.pid for process in multiprocessing.active_children()}
        for stray in [child for child in server.children() if child.pid not in ranks]:
            for process in (*stray.children(recursive=True), stray):
                process.kill()


def _unpacked(value: bytes, rank: str) -> Any:
    try:
        return pickle.loads(value)
    except Exception as error:
        told = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CourseError(f"{rank} returned what cannot be read here ({told}); return numbers or arrays") from None


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Hide ``__main__``: multiprocessing would run the caller's script again in each rank, to find its functions."""
    with _STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _checked(world_size: int, timeout_s: float, backend: str) -> str:
    """The backend to use, if ranks can be had as they are asked for."""
    node.refuse_on_login("starting ranks")
    if isinstance(world_size, bool) or not isinstance(world_size, numbers.Integral) or world_size < 1:
        raise CourseError(f"world_size={world_size!r}: a launch needs a whole number of ranks, at least 1")
    if os.environ.get("WORLD_SIZE", str(world_size)) != str(world_size):
        told = f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set here, but {world_size} ranks are asked for"
        raise CourseError(f"{told}; unset it if it is left over, and start none from within one of torchrun's ranks")
    is_number = isinstance(timeout_s, numbers.Real) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s < LONGEST_S:
        raise CourseError(f"timeout_s={timeout_s!r}: a deadline is a number of seconds above 0, at most a month")
    if backend not in ("auto", "gloo", "nccl"):
        raise CourseError(f"no backend {backend!r}; choose auto, gloo or nccl")
    _refuse_too_many(world_size)
    n_gpus = machine.n_devices()
    if backend == "nccl" and n_gpus < world_size:
        raise CourseError(f"nccl needs a GPU for each rank: {world_size} ranks, {n_gpus} GPUs; use backend='gloo'")
    if world_size > machine.cores():
        errors.warn(f"{world_size} ranks share {machine.cores()} cores: right results, but no speed-up to be seen")
    return backend if backend != "auto" else "nccl" if n_gpus >= world_size else "gloo"


def _refuse_too_many(world_size: int) -> None:
    """Raise an error that says how many ranks the limit of open files, or the memory that is free, has room for."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 2**63  # -1 is none
    total, free = machine.memory_bytes()
    files = limit - psutil.Process().num_fds() - _SPARE_FILES
    megabytes = max(free, total // 4) // 10**6  # some of what counts as used is only a cache
    for room, of_each, what in (
        (files, _RANK_FILES, f"open files; start fewer, or raise the limit first, which is {limit} (ulimit -n)"),
        (megabytes, _RANK_MB, "MB of memory; start fewer"),
    ):
        if (fit := max(0, room // of_each)) < world_size:
            needs = f"with {of_each} for each there are {max(0, room):,} {what}"
            raise CourseError(f"{world_size} ranks do not fit here, {fit} do: {needs}")
