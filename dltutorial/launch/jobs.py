"""Jobs from Python: submit a script of ``slurm/``, ask how it does, wait for it, cancel it.

In: a script, a site (a file of ``slurm/sites``), nodes. Out: a ``Job``, and its ``State`` as often as you ask. It asks
``squeue`` first, which knows every job for some minutes after its end, and ``sacct`` only for older ones, since many
small clusters keep no accounts.

    job = submit("train", "--preset", "smoke", nodes=2, site="pocket", env=cluster.env)
    wait(job, timeout_s=120)

What a job writes is read by ``job_output``. Source: https://slurm.schedmd.com/squeue.html, "JOB STATE CODES"
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import job_output, slurm
from dltutorial.launch.job import Job
from dltutorial.launch.rejections import munge_problem

_POLL_S = 0.5
_GOING = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING")
_GOING += ("SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT")
_ENDS = {
    "CANCELLED": "was cancelled",
    "NODE_FAIL": "lost a node and was not to be requeued",
    "TIMEOUT": "ran out of its time; give it more with -t, or let it requeue as train.sbatch does",
    "OUT_OF_MEMORY": "ran out of memory; give it more nodes, or a smaller batch",
    "PREEMPTED": "was pushed aside by another job",
    "BOOT_FAIL": "got nodes that did not start",
    "DEADLINE": "could not start before its deadline",
    "FAILED": "failed",
    "UNKNOWN": "has left the queue, and this Slurm keeps no account of how it ended",
}
_ARRAY = re.compile(r"(-a|--array)(=|$)")


class JobFailed(CourseError):
    """A job has ended, and not well. ``state`` is Slurm's word."""

    def __init__(self, text: str, state: str):
        super().__init__(text)
        self.state = state


@dataclass(frozen=True)
class State:
    """How a job does.

    Attributes:
        word: Slurm's: PENDING, RUNNING, COMPLETED, FAILED, …
        reason: why it waits, or ended so; "" if there is nothing to say.
        elapsed: since it has started, as Slurm writes it.
        nodes: where it runs.
        restarts: how often it was queued again.
    """

    word: str
    reason: str = ""
    elapsed: str = "0:00"
    nodes: str = ""
    restarts: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it will not run again."""
        return self.word not in _GOING


def submit(
    script: str,
    *arguments: str,
    nodes: int = 1,
    site: str | None = None,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Job:
    """Queue ``slurm/<script>.sbatch`` as ``source slurm/sites/<site>.sh; sbatch -N nodes`` does.

    Args:
        script: train, scaling, profile or notebook; or the path of another script.
        *arguments: of the script.
        nodes: how many.
        site: a name of ``slurm/sites``; None: your settings as they are.
        env: variables on top of this process's own.
        options: more of sbatch's, such as ``--time=10``.

    Raises:
        CourseError: no Slurm, no such script or site, a setting is missing, or Slurm rejects the job: in its own words,
            and with the setting to look at.
    """
    course = paths.course_folder("slurm")
    file = Path(script) if script.endswith((".sbatch", ".sh")) else course / "slurm" / f"{script}.sbatch"
    settings = course / "slurm" / "sites" / f"{site}.sh"
    for needed in [file, settings] if site else [file]:
        if not needed.is_file():
            there = ", ".join(sorted(path.stem for path in needed.parent.glob(f"*{needed.suffix}")))
            raise CourseError(f"no {needed.name} in {needed.parent.name}/; there is: {there}")
    folder = paths.runs_dir().absolute() / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    is_array = any(_ARRAY.match(option) for option in options)
    output = folder / f"{file.stem}-{'%A_%a' if is_array else '%j'}.out"
    words = ["sbatch", "--parsable", f"--nodes={nodes}", f"--output={output}", *options, str(file.absolute())]
    if problem := munge_problem(os.environ | (env or {})):
        raise CourseError(problem)
    # The job starts in the course's folder; its runs go where this process looks for them.
    env = {"DLTUTORIAL_RUNS": str(paths.runs_dir().absolute()), **(env or {})}
    lead_in = f'source "{settings}" >&2; ' if site else ""
    said = slurm.run(["bash", "-euc", f'{lead_in}exec "$@"', "sbatch", *words, *arguments], env, course)
    number = said.strip().splitlines()[-1].partition(";")[0]
    return Job(number, Path(str(output).replace("%j", number).replace("%A", number)), env)


def tasks(job: Job) -> list[Job]:
    """The tasks of a job array; a job alone is its own only task."""
    said = slurm.run(["squeue", "-h", "--states=all", "--array", f"--jobs={job.number}", "--format=%i"], job.env)
    numbers = sorted(set(said.split()), key=lambda number: int(number.rpartition("_")[2]))
    return [Job(n, Path(str(job.output).replace("%a", n.rpartition("_")[2])), job.env) for n in numbers]


def state(job: Job) -> State:
    """How it does now.

    Raises:
        CourseError: Slurm does not answer.
    """
    form = "--Format=State:|,ReasonList:|,TimeUsed:|,NodeList:|,RestartCnt:|"
    try:
        said = slurm.run(["squeue", "--noheader", "--states=all", f"--jobs={job.number}", form], job.env)
    except CourseError as error:
        if "Invalid job id" not in str(error):
            raise
        said = ""
    if said.strip():
        word, reason, elapsed, nodes, restarts = said.splitlines()[0].split("|")[:5]
        told = reason.strip("()")
        return State(word, "" if told in ("None", nodes) else told, elapsed, nodes, int(restarts or 0))
    return State(_from_account(job))


def wait(job: Job, timeout_s: float, each: Callable[[State], object] = lambda state: None) -> State:
    """Return once the job has ended well; ``each`` is called whenever its state was asked for.

    Raises:
        JobFailed: it has ended otherwise.
        CourseError: it has not ended in time; it is left as it is.
    """
    until_s = time.monotonic() + timeout_s
    while not (now := state(job)).is_over:
        each(now)
        if time.monotonic() > until_s:
            why = f" ({now.reason})" if now.reason else ""
            raise CourseError(
                f"job {job.number} is still {now.word}{why} after {timeout_s:g} s; wait longer, or cancel it: "
                f"scancel {job.number}"
            )
        time.sleep(_POLL_S)
    each(now)
    if now.word != "COMPLETED":
        how = _ENDS.get(now.word, f"ended as {now.word}")
        cause = job_output.cause(job)
        told = f": {cause}" if cause and now.word == "FAILED" else ""
        raise JobFailed(f"job {job.number} {how}{told}; its output is in {job.output}", now.word)
    return now


def cancel(job: Job) -> None:
    """End it. Its ranks get SIGTERM first, and write a checkpoint if they can.

    Raises:
        CourseError: Slurm does not answer.
    """
    slurm.run(["scancel", job.number], job.env)


def warn(job: Job) -> None:
    """Send the signal that Slurm sends before a job's time is over (``#SBATCH --signal=B:USR1@…``).

    Raises:
        CourseError: the job does not run, or Slurm does not answer.
    """
    slurm.run(["scancel", "--batch", "--signal=USR1", job.number], job.env)


def ask_where(job: Job) -> None:
    """Send SIGUSR1 to the ranks themselves: those of a launch answer with their stacks.

    Raises:
        CourseError: the job does not run, or Slurm does not answer.
    """
    slurm.run(["scancel", "--signal=USR1", job.number], job.env)


def _from_account(job: Job) -> str:
    """What ``sacct`` knows of a job that has left the queue."""
    try:
        said = slurm.run(["sacct", "-n", "--parsable2", "-X", f"--jobs={job.number}", "--format=State"], job.env)
    except CourseError:
        return "UNKNOWN"
    return said.split()[0] if said.split() else "UNKNOWN"
