"""The course's collectives through MPI, an optional second backend. It needs mpi4py and an MPI.

``clock`` has the inputs and the output of ``stopwatch.clock``. ``mpiexec`` starts the ranks. Each of them runs this
module as a script, and rank 0 prints the times of all ranks as one line of JSON.

torch adds the values, and MPI only moves bytes, so all dtypes work. The name "backend" stands for MPI's own all-reduce.
Importing this module does not import mpi4py, because importing mpi4py starts MPI.

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
from dltutorial.comm.communicator import Communicator, PeerTensor
from dltutorial.errors import CourseError
from dltutorial.profile.timing import Timing

_RESULT_PREFIX = "dltutorial-mpi "
_TIMEOUT_S = 300.0


def missing() -> str | None:
    """Say in one line what is not installed. The result is None if MPI can be used."""
    if mpiexec() is None:
        return "MPI: not available here (no mpiexec; install both: .venv/bin/pip install -e '.[mpi]')"
    if importlib.util.find_spec("mpi4py") is None:
        return "MPI: not available here (mpiexec is there, mpi4py is not: pip install mpi4py)"
    return None


def mpiexec() -> str | None:
    """Return the path of MPI's launcher, or None.

    The launcher in the folder of this Python comes first, because mpi4py uses the MPI of that folder.
    """
    folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    return shutil.which("mpiexec", path=os.pathsep.join(folders))


class MpiTransport:
    """Moves tensors in host memory between the ranks of an MPI communicator, as bytes."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.rank = world.Get_rank()
        self.world_size = world.Get_size()

    def exchange(self, outgoing: Sequence[PeerTensor], incoming: Sequence[PeerTensor]) -> None:
        """Send and receive all tensors at the same time, and return when all of them have arrived."""
        requests = [self.world.Irecv(_bytes_of(x), peer) for x, peer in incoming]
        requests += [self.world.Isend(_bytes_of(x), peer) for x, peer in outgoing]
        for request in requests:
            request.Wait()


def _bytes_of(x: torch.Tensor) -> Any:
    """Return the memory of a tensor as a NumPy array of bytes."""
    return x.view(-1).view(torch.uint8).numpy()


def clock(
    names: Sequence[str], world_size: int, sizes_bytes: Sequence[int], repeats: int = 20, node_size: int = 0
) -> dict[tuple[str, int], Timing]:
    """Measure the time of collectives through MPI.

    Args:
        names: Names from ``stopwatch.OURS``, or "backend" for MPI's own all-reduce.
        world_size: The number of ranks.
        sizes_bytes: The bytes of the whole tensor, multiples of 4.
        repeats: The number of samples. Sizes above 4 MiB get fewer.
        node_size: The number of ranks on a node, for the hierarchical all-reduce.

    Returns:
        The times of the slowest rank, for each pair of a name and a size.

    Raises:
        CourseError: MPI is not installed or fails. The message has the last line that it printed.
    """
    job = {"names": list(names), "sizes": list(sizes_bytes), "repeats": repeats, "node_size": node_size}
    samples_by_rank = []
    for rows in _run(world_size, job):
        samples_by_rank.append({(name, n_bytes): seconds for name, n_bytes, seconds in rows})
    return stopwatch.slowest(samples_by_rank)


def _run(world_size: int, job: dict[str, Any]) -> list[Any]:
    """Start ``mpiexec`` with this module as its script, and return the results of all ranks."""
    reason = missing()
    if reason is not None:
        raise CourseError(reason)
    command = [mpiexec() or "", "-n", str(world_size), sys.executable, "-m", "dltutorial.comm.mpi", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=_environment())
    for line in done.stdout.splitlines():
        if line.startswith(_RESULT_PREFIX):
            return json.loads(line.removeprefix(_RESULT_PREFIX))
    last_line = done.stderr.strip().rpartition("\n")[2]
    raise CourseError(f"mpiexec failed ({last_line}); try mpiexec -n 2 hostname")


def _environment() -> dict[str, str]:
    """Return the environment of the ranks: they import from the same folders, and compute with one thread."""
    folders = [folder for folder in sys.path if folder]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "OMP_NUM_THREADS": "1",
        # By default Open MPI refuses more ranks than cores. Other MPIs ignore these two settings.
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def _main(job: dict[str, Any]) -> None:
    """Measure on one rank that ``mpiexec`` started. Rank 0 prints the results of all ranks."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD

    def mpi_all_reduce(x: torch.Tensor) -> None:
        world.Allreduce(MPI.IN_PLACE, x.numpy())

    comm = Communicator(MpiTransport(world), node_size=job["node_size"])
    variants = stopwatch.functions_by_name(job["names"], comm, mpi_all_reduce)
    samples = stopwatch.turns(variants, job["sizes"], job["repeats"], world.Barrier)
    rows = [[name, n_bytes, seconds] for (name, n_bytes), seconds in samples.items()]
    rows_by_rank = world.allgather(rows)
    if world.Get_rank() == 0:
        print(_RESULT_PREFIX + json.dumps(rows_by_rank), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
