"""Make torch's process group from the environment, and leave it.

Input: ``RankInfo``, and the variables ``MASTER_ADDR`` and ``MASTER_PORT``, which torchrun or a job script sets.
Output: the store that all ranks share, and torch's default process group, with gloo, NCCL, or both.

Source: https://docs.pytorch.org/docs/stable/distributed.html, "Environment variable initialization".
"""

import contextlib
import datetime
import os
import socket
import sys
import time
from typing import NoReturn

import torch
import torch.distributed as dist

from dltutorial.errors import CourseError
from dltutorial.ranks import RankInfo

RENDEZVOUS_S = 300.0  # on many nodes, importing torch alone takes minutes
COLLECTIVE_S = 1800.0  # a rank may have to wait while another rank simulates data
LEAVE_S = 60.0  # rank 0 then no longer waits for the others


def rendezvous(info: RankInfo) -> dist.Store:
    """Wait until all ranks have started.

    Args:
        info: The number of this rank and of all ranks.

    Returns:
        The store that all ranks share. Rank 0, or the agent of torchrun, holds it.

    Raises:
        CourseError: The environment does not say where rank 0 is, or not all ranks came within ``RENDEZVOUS_S``.
    """
    host = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT")
    if not host or not port:
        raise CourseError(
            f"MASTER_ADDR and MASTER_PORT do not say where the {info.world_size} ranks meet; start through torchrun or "
            "a script in slurm/, or unset RANK and WORLD_SIZE to run one process"
        )
    if info.local_world_size == info.world_size:
        use_loopback()
    timeout = datetime.timedelta(seconds=RENDEZVOUS_S)
    try:
        socket.getaddrinfo(host, None)  # torch would try an unknown name until the timeout
        store, *_ = next(dist.rendezvous("env://", info.rank, info.world_size, timeout=timeout))
    except (OSError, RuntimeError, ValueError) as error:
        raise CourseError(
            f"rank {info.rank} of {info.world_size} did not meet the others at {host}:{port} ({_first_line(error)}); "
            "start as many ranks as WORLD_SIZE says, set MASTER_ADDR to the name or address of rank 0's node, and "
            "MASTER_PORT to a free port there"
        ) from error
    return store


def make_process_group(
    info: RankInfo, store: dist.Store, backend: str, timeout_s: float = COLLECTIVE_S
) -> torch.device:
    """Make torch's default process group. With NCCL, this rank's GPU becomes the current device.

    Args:
        info: The number of this rank and of all ranks.
        store: The store that all ranks share.
        backend: ``gloo``, ``nccl``, or ``cpu:gloo,cuda:nccl``.
        timeout_s: The seconds after which a collective raises an error.

    Returns:
        The device on which this rank computes.

    Raises:
        CourseError: The ranks cannot connect to each other, or two ranks have the same GPU.
    """
    device = _own_gpu(info, store) if "nccl" in backend else torch.device("cpu")
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=info.rank,
            world_size=info.world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
            device_id=device if backend == "nccl" else None,  # then NCCL connects the ranks at once
        )
    except (RuntimeError, ValueError) as error:
        raise CourseError(
            f"the ranks have met but cannot connect to each other ({_first_line(error)}); set GLOO_SOCKET_IFNAME to "
            "the network interface that joins the nodes"
        ) from error
    return device


def leave(info: RankInfo, store: dist.Store, status: int) -> NoReturn:
    """End this process. Rank 0 ends last, because it may hold the store.

    The process group is not destroyed, because ``destroy_process_group`` can hang while a DDP model exists
    (https://github.com/pytorch/pytorch/issues/56297).

    Args:
        info: The number of this rank and of all ranks.
        store: The store that all ranks share.
        status: The exit status of this process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(RuntimeError):  # the agent of torchrun, which holds the store, may have ended
        n_left = store.add("left", 1)
        deadline_s = time.monotonic() + LEAVE_S
        while info.rank == 0 and n_left < info.world_size and time.monotonic() < deadline_s:
            time.sleep(0.02)
            n_left = store.add("left", 0)
    os._exit(status)


def use_loopback() -> None:
    """Let the ranks of one machine communicate through its loopback, so that its own name need not resolve."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)


def _own_gpu(info: RankInfo, store: dist.Store) -> torch.device:
    """Choose this rank's GPU, and check that no other rank has it. Slurm may show each rank only one GPU."""
    device = torch.device("cuda", info.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    uuid = torch.cuda.get_device_properties(device).uuid
    owner = store.compare_set(f"gpu {uuid}", "", str(info.rank)).decode()  # the first rank that writes has the GPU
    if owner != str(info.rank):
        raise CourseError(
            f"ranks {owner} and {info.rank} would share one GPU, and NCCL needs one for each rank; start as many ranks "
            "as there are GPUs, or set CUDA_VISIBLE_DEVICES='' to compute on CPUs"
        )
    return device


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
