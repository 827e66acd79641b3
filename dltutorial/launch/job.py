"""Which job: its number, where it writes, and how Slurm's commands find it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """A job, or one task of a job array.

    Attributes:
        number: Slurm's, such as 123 or 123_4.
        output: the file that it writes to.
        env: variables that lead Slurm's commands to its cluster.
    """

    number: str
    output: Path
    env: Mapping[str, str] = field(default_factory=dict)
