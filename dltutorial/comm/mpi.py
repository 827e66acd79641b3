"""The same collectives through MPI, where mpi4py and an MPI are installed: an optional second backend.

In: as ``stopwatch.clock``. Out: the same timings, of processes that ``mpiexec`` starts: each runs this module, and
rank 0 prints one line of JSON. torch adds up, MPI only carries bytes, so every dtype travels; MPI's own all-reduce is
timed as ``backend``. Nothing here imports mpi4py before a process of ``mpiexec`` does, for importing it starts MPI.

Source: https://mpi4py.readthedocs.io/en/stable/tutorial.html
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dltutorial.comm import stopwatch
from dltutorial.comm.communicator import Communicator, Parcel
from dltutorial.errors import CourseError
from dltutorial.profile.timing import Timing

_MARK = "dltutorial-mpi "


def missing() -> str | None:
    """What is not here, in one line; None if MPI can be used."""
    if mpiexec() is None:
        return "MPI: not available here (no mpiexec; install both: .venv/bin/pip install -e '.[mpi]')"
    if importlib.util.find_spec("mpi4py") is None:
        return "MPI: not available here (mpiexec is there, mpi4py is not: pip install mpi4py)"
    return None


def mpiexec() -> str | None:
    """MPI's launcher: the one beside this Python, whose MPI mpi4py then takes; else the system's."""
    return shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))


class MpiTransport:
    """Carries tensors of host memory as bytes, all of one round at once, among the ranks of an MPI communicator."""

    def __init__(self, world: Any) -> None:
        self.world, self.rank, self.world_size = world, world.Get_rank(), world.Get_size()

    def exchange(self, outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        """Receive and send; return when all have arrived."""
        waiting = [self.world.Irecv(x.view(-1).view(torch.uint8).numpy(), peer) for x, peer in incoming]
        waiting += [self.world.Isend(x.view(-1).view(torch.uint8).numpy(), peer) for x, peer in outgoing]
        for request in waiting:
            request.Wait()


def clock(
    names: Sequence[str], world_size: int, sizes_bytes: Sequence[int], repeats: int = 20, node_size: int = 0
) -> dict[tuple[str, int], Timing]:
    """As ``stopwatch.clock``, through MPI. CourseError: there is no MPI here, or it fails: with its own last words."""
    job = {"names": list(names), "sizes": list(sizes_bytes), "repeats": repeats, "node_size": node_size}
    ranks = [{(name, n): samples for name, n, samples in rank} for rank in _run(world_size, job)]
    return stopwatch.slowest(ranks)


def _run(world_size: int, job: dict[str, Any], timeout_s: float = 300.0) -> list[Any]:
    """What every process of an ``mpiexec`` answers to ``job``."""
    if (why := missing()) is not None:
        raise CourseError(why)
    command = [mpiexec() or "", "-n", str(world_size), sys.executable, "-m", "dltutorial.comm.mpi", json.dumps(job)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    # Open MPI refuses more ranks than cores unless told; other MPIs do not read these.
    env |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    try:
        how: dict = {"encoding": "utf-8", "errors": "replace", "timeout": timeout_s, "env": env}
        done = subprocess.run(command, capture_output=True, **how)
    except subprocess.TimeoutExpired:
        raise CourseError(f"mpiexec did not end within {timeout_s:g} s; try mpiexec -n 2 hostname") from None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    raise CourseError(f"mpiexec failed: {said[-1]}; try mpiexec -n 2 hostname")


def _main(job: dict[str, Any]) -> None:
    """One process of ``mpiexec``: do the job, and let rank 0 print what all found."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    comm = Communicator(MpiTransport(world), node_size=job["node_size"])
    variants = stopwatch.named(job["names"], comm, lambda x: world.Allreduce(MPI.IN_PLACE, x.numpy()))
    timed = stopwatch.turns(variants, job["sizes"], job["repeats"], world.Barrier)
    found = world.allgather([[name, n, samples] for (name, n), samples in timed.items()])
    if world.Get_rank() == 0:
        print(_MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
