"""Slurm's commands from Python: run one, and turn every way in which it can fail into one line.

In: words of a command, variables that lead it to its cluster. Out: what it says.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dltutorial.errors import CourseError
from dltutorial.launch.rejections import explained, munge_problem

_ANSWER_S = 30.0


def run(command: Sequence[str], env: Mapping[str, str], folder: Path | None = None) -> str:
    """What a command of Slurm's says.

    Raises:
        CourseError: it is not there, does not answer, or fails.
    """
    try:
        done = subprocess.run(
            command, env=surroundings(env), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_ANSWER_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise CourseError(explained("", missing=command[0])) from None
    except subprocess.TimeoutExpired as error:  # Slurm tries again and again when munge is gone, without a word
        said = (error.stderr or b"no answer").decode(errors="replace")
        raise CourseError(munge_problem(surroundings(env)) or explained(said)) from None
    if done.returncode:
        raise CourseError(explained(done.stderr or done.stdout))
    return done.stdout


def surroundings(env: Mapping[str, str]) -> dict[str, str]:
    """This process's variables and ``env``; those of a job that this process is in would pass for wishes."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    return {"DLTUTORIAL_PYTHON": sys.executable, **own, **env}
