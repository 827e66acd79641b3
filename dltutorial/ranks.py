"""Which of how many processes am I?

In: the environment variables that a launcher sets. Out: a frozen ``RankInfo``. torchrun's variables win over
Slurm's, since ``srun torchrun`` sets both and the inner launcher made this process.

Sources: https://pytorch.org/docs/stable/elastic/run.html and https://slurm.schedmd.com/srun.html, section
"output environment variables".
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dltutorial.errors import CourseError

_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_NOT_SRUN = 0xFFFFFFF0  # Slurm numbers the batch script and an interactive salloc shell as steps from here on
_GROUP = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class RankInfo:
    """One process among those that run the same program.

    Attributes:
        rank: number among all processes, from 0.
        local_rank: number among the processes of this node, from 0.
        world_size: number of processes.
        local_world_size: number of processes on this node.
        node_rank: number of this node, from 0.
        launcher: single, torchrun or slurm.

    Raises:
        CourseError: numbers that cannot belong together.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0
    launcher: str = "single"

    def __post_init__(self):
        nested = 0 <= self.local_rank < self.local_world_size <= self.world_size and self.node_rank >= 0
        if not (nested and self.local_rank <= self.rank < self.world_size):
            raise CourseError(
                f"impossible ranks from {self.launcher}: rank {self.rank} of {self.world_size}, local rank "
                f"{self.local_rank} of {self.local_world_size}, node {self.node_rank}; start through torchrun or "
                "srun, or unset the variables left over from an earlier launch"
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "RankInfo":
        """Read torchrun's variables, else those of a Slurm job step, else be the only process.

        A batch script has ``SLURM_PROCID=0`` and the job's ``SLURM_NTASKS`` too, but only ``srun`` starts several
        processes: outside a job step there is one.

        Raises:
            CourseError: variables are missing, are no numbers, or contradict each other.
        """
        env = os.environ if env is None else env
        if "RANK" in env or "WORLD_SIZE" in env:
            return _from_torchrun(env)
        if "SLURM_PROCID" in env and _is_srun_step(env):
            return _from_slurm(env)
        return cls()


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's notation: ``"2(x2),1"`` is ``[2, 2, 1]``, tasks on each node in order.

    Raises:
        CourseError: another notation.
    """
    parts = text.split(",")
    groups = [group for part in parts if (group := _GROUP.fullmatch(part.strip()))]
    if len(groups) < len(parts):
        raise CourseError(f"cannot read tasks per node {text!r}: expected a form such as '2(x2),1'; start through srun")
    return [int(group[1]) for group in groups for _ in range(int(group[2] or 1))]


def _from_torchrun(env: Mapping[str, str]) -> RankInfo:
    rank, local_rank, world_size, local_world_size = (_number(env, name, "torchrun") for name in _TORCHRUN)
    # torchrun always sets GROUP_RANK; other launchers with its variables fill nodes evenly.
    node_rank = _number(env, "GROUP_RANK", "torchrun") if "GROUP_RANK" in env else rank // max(local_world_size, 1)
    return RankInfo(rank, local_rank, world_size, local_world_size, node_rank, "torchrun")


def _from_slurm(env: Mapping[str, str]) -> RankInfo:
    # A step may be smaller than its job, so the step's own numbers come first.
    total = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    rank, local_rank, world_size, node_rank = (
        _number(env, name, "srun") for name in ("SLURM_PROCID", "SLURM_LOCALID", total, "SLURM_NODEID")
    )
    local_world_size = _tasks_here(env, node_rank, world_size)
    return RankInfo(rank, local_rank, world_size, local_world_size, node_rank, "slurm")


def _tasks_here(env: Mapping[str, str], node_rank: int, world_size: int) -> int:
    """How many tasks of the job step are on this node."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if name in env:
            nodes = tasks_per_node(env[name])
            if sum(nodes) == world_size and 0 <= node_rank < len(nodes):
                return nodes[node_rank]
            raise CourseError(
                f"{name}={env[name]!r} does not fit node {node_rank} and {world_size} tasks; start through srun, "
                "which sets them all"
            )
    return _number(env, "SLURM_NTASKS_PER_NODE", "srun") if "SLURM_NTASKS_PER_NODE" in env else world_size


def _is_srun_step(env: Mapping[str, str]) -> bool:
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
    return step.isdecimal() and int(step) < _NOT_SRUN


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    if name not in env:
        raise CourseError(
            f"{name} is not set although other variables of {launcher} are; start through {launcher}, "
            "or unset RANK, WORLD_SIZE and the like to run one process"
        )
    try:
        return int(env[name])
    except ValueError:
        raise CourseError(
            f"{name}={env[name]!r} is not a whole number; start through {launcher}, which sets it"
        ) from None
