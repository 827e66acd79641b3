"""Which of how many processes is this?

Input: the environment variables that a launcher sets.
Output: a frozen ``RankInfo``. The variables of torchrun win over those of Slurm, because ``srun torchrun`` sets both,
and the inner launcher has started this process.

Sources: https://pytorch.org/docs/stable/elastic/run.html, and https://slurm.schedmd.com/srun.html, section
"output environment variables".
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dltutorial.errors import CourseError

_NOT_SRUN = 0xFFFFFFF0  # Slurm gives the batch script and the shell of salloc a step number from here on


@dataclass(frozen=True)
class RankInfo:
    """One process among those that run the same program.

    Attributes:
        rank: The number among all processes, from 0.
        local_rank: The number among the processes of this node, from 0.
        world_size: The number of processes.
        local_world_size: The number of processes on this node.
        launcher: ``single``, ``torchrun`` or ``slurm``.

    Raises:
        CourseError: The numbers cannot belong together.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launcher: str = "single"

    def __post_init__(self) -> None:
        is_possible_here = 0 <= self.local_rank < self.local_world_size <= self.world_size
        is_possible = self.local_rank <= self.rank < self.world_size
        if not (is_possible_here and is_possible):
            raise CourseError(
                f"impossible ranks from {self.launcher}: rank {self.rank} of {self.world_size}, local rank "
                f"{self.local_rank} of {self.local_world_size}; start through torchrun or srun, or unset the variables "
                "left over from an earlier launch"
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> "RankInfo":
        """Read the variables of torchrun or those of a Slurm job step. Without them, this is the only process.

        A batch script has ``SLURM_PROCID=0`` and the ``SLURM_NTASKS`` of its job, too. But only ``srun`` starts several
        processes, so outside a job step there is one.

        Args:
            env: The environment variables. None means those of this process.

        Raises:
            CourseError: Variables are missing, are not numbers, or contradict each other.
        """
        env = os.environ if env is None else env
        is_slurm_step = "SLURM_PROCID" in env and int(env.get("SLURM_STEP_ID", _NOT_SRUN)) < _NOT_SRUN
        # NVIDIA's container runtime enroot also sets RANK and WORLD_SIZE in a job step, but not LOCAL_WORLD_SIZE.
        is_by_enroot = is_slurm_step and "LOCAL_WORLD_SIZE" not in env
        if ("RANK" in env or "WORLD_SIZE" in env) and not is_by_enroot:
            return cls(
                rank=_number(env, "RANK", "torchrun"),
                local_rank=_number(env, "LOCAL_RANK", "torchrun"),
                world_size=_number(env, "WORLD_SIZE", "torchrun"),
                local_world_size=_number(env, "LOCAL_WORLD_SIZE", "torchrun"),
                launcher="torchrun",
            )
        if is_slurm_step:
            n_tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
            return cls(
                rank=_number(env, "SLURM_PROCID", "srun"),
                local_rank=_number(env, "SLURM_LOCALID", "srun"),
                world_size=_number(env, n_tasks, "srun"),  # a step may be smaller than its job
                local_world_size=env.get("SLURM_GTIDS", "").count(",") + 1,  # it lists all ranks of this node
                launcher="slurm",
            )
        return cls()


def _number(env: Mapping[str, str], name: str, launcher: str) -> int:
    """Return the number in a variable."""
    try:
        return int(env[name])
    except (KeyError, ValueError):
        raise CourseError(
            f"{name}={env.get(name)!r}, although other variables of {launcher} are set, must be a whole number; start "
            f"through {launcher}, or unset RANK, WORLD_SIZE and the like to run one process"
        ) from None
