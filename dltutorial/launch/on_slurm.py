"""``launch`` on the nodes of a cluster: a function as a Slurm job, every rank's value back.

In: a function, of a library or of a notebook cell, and its arguments. Out: the list of its values, by rank. It behaves
as ``launch`` does: printed lines come as ``[rank 3] …`` while the ranks work, a rank's exception comes with that rank's
traceback, a hang ends at the deadline and says where each rank waits. Caller and ranks talk by files in the runs
folder, which all nodes must see. How the job does is asked of squeue, so no accounting (``sacct``) is needed.

    launch_on_slurm(total, nodes=2, ranks_per_node=4, site="perlmutter")
"""

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import failures, jobs
from dltutorial.launch.output import Output
from dltutorial.launch.rank import packed

LIMIT_BYTES = 2**28  # of the arguments, and of each value
_POLL_S, _ASK_S = 0.1, 1.0
_GRACE_S = 1.0  # after an error, for others that may tell more
_CAUSE_S = 8.0  # after errors that only say that another rank is gone, for Slurm to say what became of that one
_STACK_S = 2.0  # for the ranks to say where they are


def launch_on_slurm(
    function: Callable[..., Any],
    nodes: int,
    *args: Any,
    ranks_per_node: int = 1,
    site: str | None = None,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    timeout_s: float = 3600.0,
    backend: str = "auto",
    **kwargs: Any,
) -> list[Any]:
    """Run ``function(*args, **kwargs)`` on ``nodes × ranks_per_node`` ranks of one job.

    Args:
        function: any function that cloudpickle can send, also one of a notebook cell.
        nodes: how many.
        *args: the same for every rank.
        ranks_per_node: one for each GPU, as a rule.
        site: a name of ``slurm/sites``.
        env: variables on top of this process's own, such as a pocket cluster's.
        options: more of sbatch's.
        timeout_s: from now, the queue included; after it the job is cancelled.
        backend: gloo, nccl, or auto (nccl if every rank has a GPU of its own).
        **kwargs: the same for every rank.

    Returns:
        What the ranks returned, by rank.

    Raises:
        CourseError: Slurm rejects the job, it is cancelled, loses a node, or does not start in time.
        RankFailed: a rank raised; with that rank's traceback.
        RanksHang: the deadline has passed; with the line at which each rank waits.
    """
    if backend not in ("auto", "gloo", "nccl"):
        raise CourseError(f"no backend {backend!r}; choose auto, gloo or nccl")
    if min(nodes, ranks_per_node) < 1:
        raise CourseError(f"{nodes} nodes × {ranks_per_node} ranks: a launch needs at least one of each")
    import cloudpickle

    what = f"{getattr(function, '__name__', 'the function')} takes or refers to something"
    call = packed((function, args, kwargs), what, LIMIT_BYTES, cloudpickle.dumps)
    parent = paths.runs_dir().absolute() / "jobs"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="launch-", dir=parent))
    here = {"path": [str(path) for path in sys.path], "cwd": str(Path.cwd())}
    setting = here | {"timeout_s": timeout_s, "backend": backend, "limit_bytes": LIMIT_BYTES}
    job = None
    try:
        (folder / "call").write_bytes(call)
        (folder / "setting.json").write_text(json.dumps(setting))
        own = {"DLTUTORIAL_RANKS_PER_NODE": str(ranks_per_node), "DLTUTORIAL_LAUNCHER": "srun"}
        sized = [f"--ntasks-per-node={ranks_per_node}", *options]
        job = jobs.submit("launch", str(folder), nodes=nodes, site=site, env={**(env or {}), **own}, options=sized)
        values = _Waiting(job, folder, nodes * ranks_per_node, timeout_s).values()
        job = None
        return [cloudpickle.loads(value) for value in values]
    finally:
        if job is not None:
            with contextlib.suppress(CourseError):  # what ended the launch matters more
                jobs.cancel(job)
        shutil.rmtree(folder, ignore_errors=True)


class _Waiting:
    """One launch, seen from the caller: files that appear, and a job that may end without them."""

    def __init__(self, job: jobs.Job, folder: Path, world_size: int, timeout_s: float):
        self._job, self._folder, self._world_size, self._timeout_s = job, folder, world_size, timeout_s
        self._until_s = time.monotonic() + timeout_s
        self._output, self._read = Output(world_size), [0] * world_size
        self._asked_s, self._failed_s = 0.0, float("inf")

    def values(self) -> list[bytes]:
        """Every rank's value, pickled; the ranks may go once all are there."""
        try:
            while not all(self._file(rank, "value").exists() for rank in range(self._world_size)):
                self._print()
                self._check_ranks()
                self._check_job()
                time.sleep(_POLL_S)
            found = [self._file(rank, "value").read_bytes() for rank in range(self._world_size)]
            (self._folder / "done").touch()
            return found
        finally:
            self._print()
            self._output.close()

    def _file(self, rank: int, kind: str) -> Path:
        return self._folder / f"rank-{rank}.{kind}"

    def _print(self) -> None:
        """What the ranks have written since we looked last."""
        for rank in range(self._world_size):
            if self._file(rank, "out").exists():
                with open(self._file(rank, "out"), "rb") as file:
                    file.seek(self._read[rank])
                    data = file.read()
                self._read[rank] += len(data)
                self._output.feed(rank, data)

    def _check_ranks(self, is_over: bool = False) -> None:
        """Raise the first real failure, a moment after it, so that others can be told too."""
        if not any(self._file(rank, "error").exists() for rank in range(self._world_size)):
            return
        now_s = time.monotonic()
        self._failed_s = min(self._failed_s, now_s)
        files = [(rank, self._file(rank, "error")) for rank in range(self._world_size)]
        found = [
            failures.from_error(rank, file.stat().st_mtime, json.loads(file.read_text()))
            for rank, file in files
            if file.exists()
        ]
        only_effects = all(failure.is_effect for failure in found)
        if now_s - self._failed_s > (_CAUSE_S if only_effects else _GRACE_S) or (is_over and not only_effects):
            raise failures.as_exception(found, self._world_size)

    def _check_job(self) -> None:
        """Raise if the deadline has passed, or the job has ended; ask Slurm at most once a second."""
        now_s = time.monotonic()
        if now_s > self._until_s:
            self._give_up()
        if now_s - self._asked_s < _ASK_S:
            return
        self._asked_s = now_s
        if jobs.state(self._job).is_over:
            time.sleep(_GRACE_S)  # a shared file system may show the last files late
            self._check_ranks(is_over=True)
            jobs.wait(self._job, 1.0)
            raise CourseError(f"job {self._job.number} ended before its ranks returned; see {self._job.output}")

    def _give_up(self) -> None:
        now = jobs.state(self._job)
        if now.word == "PENDING":
            why = f" ({now.reason})" if now.reason else ""
            raise CourseError(
                f"job {self._job.number} was still PENDING{why} after {self._timeout_s:g} s and is cancelled; "
                "ask for less, or raise timeout_s"
            )
        waiting = [rank for rank in range(self._world_size) if not self._file(rank, "value").exists()]
        jobs.ask_where(self._job)
        until_s = time.monotonic() + _STACK_S
        while time.monotonic() < until_s and not all(self._stack(rank) for rank in waiting):
            time.sleep(_POLL_S)
        raise failures.hang(self._timeout_s, {rank: self._stack(rank) for rank in waiting}, self._world_size)

    def _stack(self, rank: int) -> str:
        file = self._file(rank, "stack")
        return file.read_text(errors="replace") if file.exists() else ""
