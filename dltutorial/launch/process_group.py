"""Make torch's process group from the environment, and leave it.

Input: ``RankInfo``, and the variables of torchrun (``MASTER_ADDR``, ``MASTER_PORT``) or of a Slurm job step.
Output: the store that all ranks share, and torch's default process group, with gloo, NCCL, or both.

Sources: https://docs.pytorch.org/docs/stable/distributed.html, "Environment variable initialization", and
https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
"""

import contextlib
import datetime
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import NoReturn

import torch
import torch.distributed as dist

from dltutorial.errors import CourseError
from dltutorial.ranks import RankInfo

RENDEZVOUS_S = 300.0  # on many nodes, importing torch alone takes minutes
COLLECTIVE_S = 1800.0  # a rank may have to wait while another rank simulates data


def rendezvous(info: RankInfo, timeout_s: float = RENDEZVOUS_S) -> dist.Store:
    """Wait until all ranks have started.

    Args:
        info: The number of this rank and of all ranks.
        timeout_s: The seconds after which this rank gives up.

    Returns:
        The store that all ranks share. Rank 0, or the agent of torchrun, holds it.

    Raises:
        CourseError: The environment does not say where rank 0 is, or not all ranks came.
    """
    where = address(info, os.environ)
    os.environ.update(where)
    if info.local_world_size == info.world_size:
        use_loopback()
    timeout = datetime.timedelta(seconds=timeout_s)
    try:
        socket.getaddrinfo(where["MASTER_ADDR"], None)  # torch would try an unknown name until the timeout
        store, *_ = next(dist.rendezvous("env://", info.rank, info.world_size, timeout=timeout))
    except (OSError, RuntimeError, ValueError) as error:
        raise CourseError(
            f"rank {info.rank} of {info.world_size} did not meet the others at {where['MASTER_ADDR']}:"
            f"{where['MASTER_PORT']} ({_first_line(error)}); start as many ranks as WORLD_SIZE says, set MASTER_ADDR "
            "to the name or address of rank 0's node, and MASTER_PORT to a free port there"
        ) from error
    # If torchrun starts the ranks again, it uses the same store. The prefix hides what the earlier ranks have written.
    return dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)


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


def leave(info: RankInfo, store: dist.Store, status: int = 0, timeout_s: float = 60.0) -> NoReturn:
    """End this process. Rank 0 ends last, because it may hold the store.

    The process group is not destroyed, because ``destroy_process_group`` can hang while a DDP model exists
    (https://github.com/pytorch/pytorch/issues/56297).

    Args:
        info: The number of this rank and of all ranks.
        store: The store that all ranks share.
        status: The exit status of this process.
        timeout_s: The seconds after which rank 0 no longer waits for the others.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(RuntimeError):  # the agent of torchrun, which holds the store, may have ended
        n_left = store.add("left", 1)
        deadline_s = time.monotonic() + timeout_s
        while info.rank == 0 and n_left < info.world_size and time.monotonic() < deadline_s:
            time.sleep(0.02)
            n_left = store.add("left", 0)
    os._exit(status)


def address(info: RankInfo, env: Mapping[str, str]) -> dict[str, str]:
    """Find out where the ranks meet.

    Args:
        info: The number of this rank and of all ranks.
        env: The environment variables.

    Returns:
        ``MASTER_ADDR`` and ``MASTER_PORT``, as they are set. If they are not set and Slurm started the ranks, they are
        the first node of the job step and a port that belongs to the job step.

    Raises:
        CourseError: They are not set, and Slurm did not start the ranks.
    """
    host = env.get("MASTER_ADDR")
    port = env.get("MASTER_PORT")
    if info.launcher == "slurm":
        port = port or _port_of_step(env)
        if not host:
            is_one_node = info.local_world_size == info.world_size
            host = "127.0.0.1" if is_one_node else _first_node(env)
    if not host or not port:
        raise CourseError(
            f"WORLD_SIZE={info.world_size}, but MASTER_ADDR and MASTER_PORT do not say where the ranks meet; start "
            "through torchrun or srun, or unset RANK and WORLD_SIZE to run one process"
        )
    return {"MASTER_ADDR": host, "MASTER_PORT": port}


def use_loopback() -> None:
    """Let the ranks of one machine communicate through its loopback, so that its own name need not resolve."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)


def _port_of_step(env: Mapping[str, str]) -> str:
    """Return a port that two job steps seldom share, below the ports that operating systems give to programs."""
    job = int(env.get("SLURM_JOB_ID", 0))
    step = int(env.get("SLURM_STEP_ID", 0))
    return str(15000 + (31 * job + step) % 15000)


def _first_node(env: Mapping[str, str]) -> str:
    """Ask Slurm for the address of the node that has rank 0. The name of the node may be known to Slurm only."""
    try:
        first = _scontrol("show", "hostnames", env["SLURM_STEP_NODELIST"]).partition("\n")[0]
        node_address = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", first))
    except (KeyError, OSError, subprocess.SubprocessError) as error:
        raise CourseError(f"Slurm does not say where the ranks meet ({error}); set MASTER_ADDR") from error
    return node_address[1] if node_address else first


def _scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=30, check=True).stdout


def _own_gpu(info: RankInfo, store: dist.Store) -> torch.device:
    """Choose this rank's GPU, and check that no other rank has it. Slurm may show each rank only one GPU."""
    use_cpus = "set CUDA_VISIBLE_DEVICES='' to compute on CPUs"
    if not dist.is_nccl_available():
        raise CourseError(f"ranks with GPUs need NCCL, which this torch lacks; install torch for CUDA, or {use_cpus}")
    device = torch.device("cuda", info.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    uuid = torch.cuda.get_device_properties(device).uuid
    owner = store.compare_set(f"gpu {uuid}", "", str(info.rank)).decode()  # the first rank that writes has the GPU
    if owner != str(info.rank):
        raise CourseError(
            f"ranks {owner} and {info.rank} would share one GPU, and NCCL needs one for each rank; start as many ranks "
            f"as there are GPUs, or {use_cpus}"
        )
    return device


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
