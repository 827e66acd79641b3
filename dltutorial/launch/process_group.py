"""torch's process group from the environment: where ranks meet, who talks over what, how they part.

In: ``RankInfo`` and the variables of torchrun (``MASTER_ADDR``, ``MASTER_PORT``) or of a Slurm job step. Out: the store
that all ranks share, and torch's default process group over it: gloo, NCCL, or both.

Sources: https://docs.pytorch.org/docs/stable/distributed.html ("Environment variable initialization"),
https://slurm.schedmd.com/srun.html ("OUTPUT ENVIRONMENT VARIABLES").
"""

import contextlib
import datetime
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from dltutorial.errors import CourseError
from dltutorial.ranks import RankInfo

JOIN_S = 300.0  # until all ranks are there: on many nodes importing torch alone takes minutes
PATIENCE_S = 15.0  # then rank 0 says that it waits
_USE_CPUS = "set CUDA_VISIBLE_DEVICES='' to compute on CPUs"
GROUP_S = 1800.0  # after which a collective gives up; others may have data to simulate or to look through


def backend_for(device: str) -> str:
    """gloo, or beside it NCCL for what is on a GPU, unless ``device`` is cpu or there is no GPU."""
    return "cpu:gloo,cuda:nccl" if device != "cpu" and torch.cuda.is_available() else "gloo"


def rendezvous(info: RankInfo, timeout_s: float = JOIN_S) -> dist.Store:
    """Wait until all ranks are there; returns the store that they share. Rank 0 or torchrun's agent holds it.
    CourseError: nothing says where the ranks meet, or they did not.
    """
    where = address(info, os.environ)
    os.environ.update(where)
    if info.local_world_size == info.world_size:
        use_loopback()
    waits = f"rank 0 of {info.world_size} waits for the others at {where['MASTER_ADDR']}:{where['MASTER_PORT']}"
    patience = threading.Timer(PATIENCE_S, print, [waits], {"file": sys.stderr})
    patience.daemon = True
    try:
        if info.rank == 0:
            patience.start()
        socket.getaddrinfo(where["MASTER_ADDR"], None)
        timeout = datetime.timedelta(seconds=timeout_s)
        store, *_ = next(dist.rendezvous("env://", info.rank, info.world_size, timeout=timeout))
    except (OSError, RuntimeError, ValueError) as error:
        raise CourseError(
            f"rank {info.rank} of {info.world_size} did not meet the others at {where['MASTER_ADDR']}:"
            f"{where['MASTER_PORT']} ({_first_line(error)}); start as many ranks as WORLD_SIZE says, set MASTER_ADDR "
            "to the name or address of rank 0's node, and MASTER_PORT to a free port there"
        ) from error
    finally:
        patience.cancel()
    # torchrun starts ranks again with the same store.
    return dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)


def make_process_group(info: RankInfo, store: dist.Store, backend: str, timeout_s: float = GROUP_S) -> torch.device:
    """Make torch's default process group; with NCCL the GPU of this rank is the current one from here on.

    Args:
        info: which rank this is.
        store: of ``rendezvous``, or a launcher's own.
        backend: as ``backend_for`` says; or gloo, or nccl alone.
        timeout_s: after which a collective gives up.

    Returns:
        Where this rank computes.

    Raises:
        CourseError: the ranks cannot connect to each other, or two have the same GPU.
    """
    device = _own_gpu(info, store) if "nccl" in backend else torch.device("cpu")
    how: dict[str, Any] = {"timeout": datetime.timedelta(seconds=timeout_s)}
    how["device_id"] = device if backend == "nccl" else None  # connects at once
    try:
        dist.init_process_group(backend, store=store, rank=info.rank, world_size=info.world_size, **how)
    except (RuntimeError, ValueError) as error:
        told = f"the ranks have met but cannot connect to each other ({_first_line(error)})"
        raise CourseError(f"{told}; set GLOO_SOCKET_IFNAME to the network interface that joins the nodes") from error
    return device


def leave(info: RankInfo, store: dist.Store, status: int = 0, timeout_s: float = 60.0) -> NoReturn:
    """End this process, the one that may hold the store last. The group is not destroyed.

    ``destroy_process_group`` while a DDP model lives can hang: https://github.com/pytorch/pytorch/issues/56297
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(RuntimeError):  # the store is gone
        store.add("left", 1)
        until_s = time.monotonic() + timeout_s
        while info.rank == 0 and store.add("left", 0) < info.world_size and time.monotonic() < until_s:
            time.sleep(0.02)
    os._exit(status)


def address(info: RankInfo, env: Mapping[str, str]) -> dict[str, str]:
    """``MASTER_ADDR`` and ``MASTER_PORT``: as they are set; under plain srun the step's first node, and a port of it.
    CourseError: they are not set, and this is no job step; or the port cannot be.
    """
    host, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    if info.launcher == "slurm":
        job, step = (int(re.sub(r"\D", "", env.get(name, "")) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        port = port or str(15000 + (31 * job + step) % 15000)  # below those that systems hand out
        host = host or ("127.0.0.1" if info.local_world_size == info.world_size else _first_node(env))
    if not host or not port:
        told = f"WORLD_SIZE={info.world_size}, but MASTER_ADDR and MASTER_PORT do not say where the ranks meet"
        raise CourseError(f"{told}; start through torchrun or srun, or unset RANK and WORLD_SIZE to run one process")
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise CourseError(f"MASTER_PORT={port!r} is no port; set it to a number from 1024 to 65535, or unset it")
    return {"MASTER_ADDR": host, "MASTER_PORT": port}


def use_loopback() -> None:
    """Let ranks of one machine talk through its loopback: then no name of this machine has to be resolved."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo" if sys.platform == "linux" else "lo0")


def _first_node(env: Mapping[str, str]) -> str:
    """Where rank 0 is. A node may have a name that only Slurm knows, so Slurm is asked for its address."""

    def scontrol(*words: str) -> str:
        return subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=30, check=True).stdout

    try:
        first = scontrol("show", "hostnames", env["SLURM_STEP_NODELIST"]).partition("\n")[0]
        found = re.search(r"\bNodeAddr=(\S+)", scontrol("show", "node", first))
    except (KeyError, OSError, subprocess.SubprocessError) as error:
        raise CourseError(f"Slurm does not say where the ranks meet ({error}); set MASTER_ADDR") from error
    return found[1] if found else first


def _own_gpu(info: RankInfo, store: dist.Store) -> torch.device:
    """A GPU that no other rank has. Slurm may show each rank just its own one."""
    if not dist.is_nccl_available():
        raise CourseError(f"ranks with GPUs need NCCL, which this torch lacks; install torch for CUDA, or {_USE_CPUS}")
    device = torch.device("cuda", info.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    name = getattr(torch.cuda.get_device_properties(device), "uuid", f"of rank {info.rank}")  # else NCCL will tell
    other = store.compare_set(f"gpu {name}", "", str(info.rank)).decode()
    if other != str(info.rank):
        told = f"ranks {other} and {info.rank} would share one GPU, and NCCL needs one for each rank"
        raise CourseError(f"{told}; start as many ranks as there are GPUs, or {_USE_CPUS}")
    return device


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
