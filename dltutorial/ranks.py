"""Which of how many processes am I?

In: the environment variables that a launcher sets. Out: a frozen ``RankInfo``. torchrun's variables win over
Slurm's, since ``srun torchrun`` sets both and the inner launcher made this process.

Sources: https://pytorch.org/docs/stable/elastic/run.html and https://slurm.schedmd.com/srun.html, section
"output environment variables".
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dltutorial.errors import CourseError

_NOT_SRUN = 0xFFFFFFF0  # Slurm numbers the batch script and an interactive salloc shell as steps from here on


@dataclass(frozen=True)
class RankInfo:
    """One process among those that run the same program.

    Attributes:
        rank: number among all processes, from 0.
        local_rank: number among the processes of this node, from 0.
        world_size: number of processes.
        local_world_size: number of processes on this node.
        launcher: single, torchrun or slurm.

    Raises:
        CourseError: numbers that cannot belong together.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launcher: str = "single"

    def __post_init__(self):
        nested = 0 <= self.local_rank < self.local_world_size <= self.world_size
        if not (nested and self.local_rank <= self.rank < self.world_size):
            raise CourseError(
                f"impossible ranks from {self.launcher}: rank {self.rank} of {self.world_size}, local rank "
                f"{self.local_rank} of {self.local_world_size}; start through torchrun or srun, or unset the variables "
                "left over from an earlier launch"
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
            names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
            rank, local_rank, world_size, on_node = (_numbers(env, name, "torchrun")[0] for name in names)
            return cls(rank, local_rank, world_size, on_node, "torchrun")
        step = env.get("SLURM_STEP_ID", "")
        if "SLURM_PROCID" in env and step.isdecimal() and int(step) < _NOT_SRUN:
            # A step may be smaller than its job, so the step's own size comes first.
            total = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
            names = ("SLURM_PROCID", "SLURM_LOCALID", total, "SLURM_GTIDS")  # the last: all ranks of this node
            (rank, *_), (local_rank, *_), (world_size, *_), here = (_numbers(env, name, "srun") for name in names)
            return cls(rank, local_rank, world_size, len(here), "slurm")
        return cls()


def _numbers(env: Mapping[str, str], name: str, launcher: str) -> list[int]:
    """One whole number, or several with commas between them."""
    words = env.get(name, "not set").split(",")
    if all(word.isdecimal() and len(word) < 10 for word in words):
        return [int(word) for word in words]
    raise CourseError(
        f"{name}={env.get(name)!r}, although other variables of {launcher} are set, must be a whole number; start "
        f"through {launcher}, or unset RANK, WORLD_SIZE and the like to run one process"
    )
