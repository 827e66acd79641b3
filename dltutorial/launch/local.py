"""Run a function on N ranks of this machine, and get every rank's value.

In: a function, of a library or of a notebook cell, and its arguments. Out: the list of its values, by rank. Inside,
the process group is there (gloo, or NCCL with a GPU for each rank) and torchrun's variables are set, so
``RankInfo.from_env()`` and ``torch.distributed`` work at once. The function neither makes nor destroys the group.

    def total():
        x = torch.ones(3) * dist.get_rank()
        dist.all_reduce(x)
        return x

    launch(total, 2)    # [tensor([1., 1., 1.]), tensor([1., 1., 1.])]

What the ranks print appears at once, as ``[rank 1] …``. Values travel by cloudpickle, only between the processes of
one launch. Source: https://docs.pytorch.org/docs/stable/distributed.html
"""

import os
import warnings
from collections.abc import Callable
from typing import Any

from dltutorial import machine, node
from dltutorial.errors import CourseError
from dltutorial.launch import failures, server
from dltutorial.launch.rank import packed, progress
from dltutorial.launch.running import Running

__all__ = ["launch", "progress", "warm"]

LIMIT_BYTES = 2**28  # of the arguments, and of each value
LONGEST_S = 31 * 24 * 3600


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
        function: any function that cloudpickle can send, also one of a notebook cell.
        world_size: number of processes.
        *args: the same for every rank.
        timeout_s: after this time ranks that have not returned are ended.
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
    backend = checked(world_size, timeout_s, backend, stacklevel=3)
    import cloudpickle

    what = f"{getattr(function, '__name__', 'the function')} takes or refers to something"
    call = packed((function, args, kwargs), what, LIMIT_BYTES, cloudpickle.dumps)
    ranks_of = server.current()
    with ranks_of.lock:
        try:
            ranks_of.wait_until_ready()
            with Running(ranks_of, world_size, timeout_s) as running:
                running.start(call, backend, LIMIT_BYTES)
                values = running.results()
        except (failures.RankFailed, failures.RanksHang):
            raise  # all ranks have ended, the server is as it was
        except BaseException as error:  # an interrupt can come at any line: nothing of this launch is used again
            ranks_of.stop()
            if isinstance(error, KeyboardInterrupt):
                warm()  # the next launch is likely to come soon
            raise
    return [_unpacked(rank, value) for rank, value in enumerate(values)]


def warm() -> None:
    """Start the fork server now, in the background, so that the first launch does not wait for its imports."""
    server.current()


def checked(world_size: int, timeout_s: float, backend: str, stacklevel: int = 2) -> str:
    """The backend to use, if ranks can be had as they are asked for.

    Args:
        world_size: number of ranks.
        timeout_s: deadline.
        backend: gloo, nccl or auto.
        stacklevel: whose line a warning names, as ``warnings.warn`` counts.

    Raises:
        CourseError: something that cannot be; a login node.
    """
    node.refuse_on_login("starting ranks")
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise CourseError(f"world_size={world_size!r}: a launch needs a whole number of ranks, at least 1")
    if os.environ.get("WORLD_SIZE", str(world_size)) != str(world_size):
        raise CourseError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set here, but {world_size} ranks are asked for; unset it if "
            "it is left over, and start none from a process that is itself one of torchrun's ranks"
        )
    check_deadline(timeout_s)
    if backend not in ("auto", "gloo", "nccl"):
        raise CourseError(f"no backend {backend!r}; choose auto, gloo or nccl")
    if os.name != "posix":
        raise CourseError("launch needs Linux or macOS; on Windows use WSL")
    n_gpus = _n_gpus()
    if backend == "nccl" and n_gpus < world_size:
        raise CourseError(f"nccl needs a GPU for each rank: {world_size} ranks, {n_gpus} GPUs; use backend='gloo'")
    if world_size > machine.cores():
        warnings.warn(
            f"{world_size} ranks share {machine.cores()} cores: right results, but no speed-up to be seen",
            stacklevel=stacklevel,
        )
    return backend if backend != "auto" else "nccl" if n_gpus >= world_size else "gloo"


def check_deadline(timeout_s: float, name: str = "timeout_s") -> None:
    """Refuse what is no deadline; ``name`` is the caller's word for it.

    Raises:
        CourseError: it is not positive, or beyond a month.
    """
    if not 0 < timeout_s < LONGEST_S:
        raise CourseError(f"{name}={timeout_s!r}: a deadline is a number of seconds above 0, at most a month")


def _n_gpus() -> int:
    if machine.device() == "cpu":
        return 0
    import torch

    return torch.cuda.device_count()


def _unpacked(rank: int, value: bytearray) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(value)
    except Exception as error:
        raise CourseError(
            f"what rank {rank} returned cannot be read here ({type(error).__name__}: {error}); return numbers, arrays, "
            "tensors or plain objects"
        ) from None
