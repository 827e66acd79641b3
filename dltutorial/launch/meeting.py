"""Where the ranks of a job meet, and how they come to form one process group.

In: ``RankInfo`` and a launcher's variables. Out: the store that all ranks share (``meet``), and torch's default
process group (``make_group``): gloo, and beside it NCCL where there are GPUs. torchrun says where to meet
(``MASTER_ADDR``, ``MASTER_PORT``); under plain ``srun`` it is the first node of the job step, and a port that follows
from the numbers of job and step.

Sources: https://docs.pytorch.org/docs/stable/distributed.html ("Distributed Key-Value Store"),
https://slurm.schedmd.com/srun.html ("OUTPUT ENVIRONMENT VARIABLES").
"""

import datetime
import ipaddress
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dltutorial.errors import CourseError
from dltutorial.ranks import RankInfo

JOIN_S = 300.0  # until all ranks are there: on many nodes importing torch alone takes minutes
GROUP_S = 1800.0  # after which a collective gives up; others may have data to simulate or to look through
_PATIENCE_S = 15.0  # then rank 0 says that it waits
_FIRST_PORT, _PORTS = 15000, 15000  # below those that systems hand out


@dataclass(frozen=True)
class Place:
    """Where the store is; ``kept`` by the launcher, else by rank 0."""

    address: str
    port: int
    kept: bool = False


def place(info: RankInfo, env: Mapping[str, str] | None = None) -> Place:
    """Where these ranks meet.

    Raises:
        CourseError: nothing says where, or what says so cannot be.
    """
    env = os.environ if env is None else env
    if info.launcher == "slurm":
        address = env.get("MASTER_ADDR") or _first_node(info, env)
        return Place(address, _port(env) if "MASTER_PORT" in env else _port_of_step(env))
    if not env.get("MASTER_ADDR") or "MASTER_PORT" not in env:
        raise CourseError(
            f"WORLD_SIZE={info.world_size}, but MASTER_ADDR and MASTER_PORT do not say where the ranks meet; start "
            "through torchrun or srun, or unset RANK and WORLD_SIZE to run one process"
        )
    return Place(env["MASTER_ADDR"], _port(env), env.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def first_host(nodes: str) -> str:
    """The first name of Slurm's notation: ``"gpu[003-007,9],login1"`` is ``"gpu003"``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", first[0] if first else nodes)


def meet(info: RankInfo, join_s: float = JOIN_S) -> dist.Store:
    """Wait until all ranks are there; returns the store that they share.

    Raises:
        CourseError: the ranks cannot meet, are too few or too many, or were told different things.
    """
    where = place(info)
    _check_name(where.address)
    if info.local_world_size == info.world_size or _is_loopback(where.address):
        _stay_inside(os.environ)
    store = _of_this_start(_open(where, info, join_s))
    call_roll(store, info, join_s)
    return store


def connect_again(info: RankInfo) -> dist.Store:
    """One more connection to the store of ``meet``, for a thread of its own."""
    where = place(info)
    return _of_this_start(dist.TCPStore(where.address, where.port, timeout=datetime.timedelta(seconds=JOIN_S)))


def make_group(info: RankInfo, store: dist.Store, device: str = "auto") -> None:
    """Make torch's default process group; with GPUs (unless ``device`` is cpu) each rank gets one of its own.

    Raises:
        CourseError: the ranks cannot talk to each other, or have too few GPUs.
    """
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        _take_gpu(store, info)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    timeout = datetime.timedelta(seconds=GROUP_S)
    inner = dist.PrefixStore("group", store)
    try:
        dist.init_process_group(backend, store=inner, rank=info.rank, world_size=info.world_size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise CourseError(
            f"the ranks have met but cannot connect to each other ({_first_line(error)}); "
            "set GLOO_SOCKET_IFNAME to the network interface that joins the nodes"
        ) from error


def _of_this_start(store: dist.Store) -> dist.Store:
    """torchrun may start all ranks again with the same store."""
    return dist.PrefixStore(f"dltutorial/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def call_roll(store: dist.Store, info: RankInfo, join_s: float) -> None:
    """Return when every rank is there, once, and all were told the same number of ranks.

    Raises:
        CourseError: otherwise.
    """
    size = store.compare_set("world_size", "", str(info.world_size)).decode()
    if size != str(info.world_size):
        raise CourseError(
            f"rank {info.rank} was told of {info.world_size} ranks, another of {size}; "
            "start all with the same WORLD_SIZE, or unset it and start through torchrun or srun"
        )
    if store.add(f"rank/{info.rank}", 1) > 1:
        raise CourseError(
            f"two processes call themselves rank {info.rank} of {info.world_size}; unset RANK and WORLD_SIZE, and "
            "start through torchrun or srun, which count"
        )
    if store.add("came", 1) == info.world_size:
        store.set("all", "1")
    patience_s = min(_PATIENCE_S, join_s)
    for limit_s in (patience_s, join_s - patience_s + (0 if info.rank == 0 else 5)):  # rank 0 speaks first
        try:
            store.wait(["all"], datetime.timedelta(seconds=max(limit_s, 0.1)))
            return
        except RuntimeError:  # torch's store says no more than this
            came = _count(store, info)
            if info.rank == 0 and limit_s == patience_s < join_s:
                print(f"{came} of {info.world_size} ranks are there; waiting for the others", file=sys.stderr)
    raise CourseError(
        f"WORLD_SIZE is {info.world_size}, but only {came} {'rank' if came == 1 else 'ranks'} came within "
        f"{join_s:g} s; start as many, or unset RANK and WORLD_SIZE to run one process"
    )


def _count(store: dist.Store, info: RankInfo) -> int:
    """How many have come."""
    try:
        return store.add("came", 0)
    except RuntimeError as error:
        raise CourseError(
            f"rank {info.rank} of {info.world_size} waited for the others when rank 0 went away; see what that one said"
        ) from error


def _open(where: Place, info: RankInfo, join_s: float) -> dist.Store:
    host = info.rank == 0 and not where.kept
    timeout = datetime.timedelta(seconds=join_s)
    try:
        return dist.TCPStore(where.address, where.port, is_master=host, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:  # of torch's kinds of it none is there in all versions
        if host:
            raise CourseError(
                f"rank 0 of {info.world_size} cannot listen on port {where.port} ({_reason(error)}); "
                "set MASTER_PORT to a free one, for all ranks"
            ) from error
        raise CourseError(
            f"rank {info.rank} finds nobody at {where.address}:{where.port} within {join_s:g} s; is rank 0 started, "
            "and MASTER_ADDR the name of its node?"
        ) from error


def _first_node(info: RankInfo, env: Mapping[str, str]) -> str:
    """The node of rank 0, by a name or address that can be connected to."""
    if info.local_world_size == info.world_size:
        return "127.0.0.1"
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    if not nodes:
        raise CourseError("SLURM_STEP_NODELIST is not set, so nothing says where the ranks meet; start through srun")
    name = first_host(nodes)
    return name if _resolves(name) else _address_in_slurm(name) or name


def _address_in_slurm(name: str) -> str | None:
    """What Slurm itself calls the node by: a node may have a name that only Slurm knows."""
    command = ["scontrol", "--oneliner", "show", "node", name]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", said)
    return found[1] if found else None


def _port_of_step(env: Mapping[str, str]) -> int:
    """The same for all ranks of a job step, and another one for the next step or job."""
    numbers = [env.get(name, "0") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")]
    job, step = (int(number) if number.isdecimal() else 0 for number in numbers)
    return _FIRST_PORT + (31 * job + step) % _PORTS


def _port(env: Mapping[str, str]) -> int:
    text = env["MASTER_PORT"]
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise CourseError(f"MASTER_PORT={text!r} is no port; set it to a number from 1024 to 65535, or unset it")
    return int(text)


def _check_name(address: str) -> None:
    if not _resolves(address):
        raise CourseError(
            f"the ranks are to meet at {address!r}, which this machine does not know; set MASTER_ADDR to the name or "
            "address of the node of rank 0"
        )


def _resolves(address: str) -> bool:
    try:
        socket.getaddrinfo(address, None)
    except OSError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return all(ipaddress.ip_address(str(found[4][0])).is_loopback for found in socket.getaddrinfo(address, None))


def _stay_inside(env: MutableMapping[str, str]) -> None:
    """Ranks of one machine talk through its loopback: then no name of this machine has to be resolved."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        env.setdefault(name, loopback)


def _take_gpu(store: dist.Store, info: RankInfo) -> None:
    """Let this rank compute on a GPU of its own. Slurm may show each rank just its own one.

    Raises:
        CourseError: there are fewer GPUs than ranks, or torch has no NCCL.
    """
    if not dist.is_nccl_available():
        raise CourseError(
            "several ranks with GPUs need NCCL, which this torch lacks; install torch for CUDA, or take --device cpu"
        )
    index = info.local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    name = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if name is None:  # an old version of torch: NCCL will tell
        return
    other = store.compare_set(f"gpu/{name}", "", str(info.rank)).decode()
    if other != str(info.rank):
        raise CourseError(
            f"ranks {other} and {info.rank} would share one GPU, and NCCL needs one for each rank; start as many ranks "
            "as there are GPUs, or --device cpu"
        )


def _reason(error: Exception) -> str:
    return "it is in use" if "EADDRINUSE" in str(error) or "in use" in str(error) else _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
