"""Jobs of the tests, which the scripts of ``slurm/`` submit to the pocket cluster."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from waiting import wait_for

from dltutorial import paths

ROOT = Path(__file__).parents[2]
ACTIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD"}


def output_of(words, env):
    """Return what a command of Slurm prints. It does not see the variables of a job that runs these tests."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env = {"DLTUTORIAL_PYTHON": sys.executable, "DLTUTORIAL_RUNS": str(paths.runs_dir().absolute()), **own, **env}
    done = subprocess.run(
        words, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 or "Invalid job id" in done.stderr, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Job:
    """A job or a job array.

    Attributes:
        number: Its number in Slurm.
        output: The file with its output.
        env: The variables that lead Slurm's commands to the cluster.
    """

    number: str
    output: Path
    env: dict

    def state(self):
        """Return Slurm's name of the state, and how often the job started again."""
        form = "--Format=State:|,RestartCnt:|"
        words = ["squeue", "--noheader", "--states=all", f"--jobs={self.number}", form]
        line = output_of(words, self.env) or "UNKNOWN|"
        word, restarts = line.split("|")[:2]
        return word, int(restarts or 0)

    def wait(self, timeout_s=250.0):
        """Wait until the job has completed, and return how often it started again."""
        wait_for(lambda: self.state()[0] not in ACTIVE, timeout_s)
        word, restarts = self.state()
        assert word == "COMPLETED", self.output.read_text()
        return restarts

    def wait_until_gone(self, timeout_s=300.0):
        """Wait until the queue holds no task of this job array."""
        words = ["squeue", "--noheader", f"--jobs={self.number}"]
        wait_for(lambda: not output_of(words, self.env).strip(), timeout_s)

    def wait_for_output(self, text, timeout_s=250.0):
        """Wait until the output of the job contains a text."""
        wait_for(lambda: self.output.exists() and text in self.output.read_text(), timeout_s)

    def signal_before_time_limit(self):
        """Send to all ranks the signal that Slurm sends before the time limit."""
        output_of(["scancel", "--signal=USR1", self.number], self.env)

    def cancel(self):
        """End the job."""
        output_of(["scancel", self.number], self.env)


def sbatch(script, *arguments, env, nodes=1, options=()):
    """Submit a script of ``slurm/`` as in a shell: ``source pocket.sh; sbatch …``."""
    file = ROOT / "slurm" / f"{script}.sbatch"
    array = any(option.startswith("--array") for option in options)
    output = f"{paths.runs_dir().absolute()}/jobs/{script}-{'%A_%a' if array else '%j'}.out"
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    words = ["sbatch", "--parsable", f"--nodes={nodes}", f"--output={output}", *options, str(file), *arguments]
    number = output_of(["bash", "-euc", 'source slurm/sites/pocket.sh; exec "$@"', "sbatch", *words], env).strip()
    return Job(number, Path(output.replace("%j", number)), env)


def losses(name):
    """Return the loss of each step that the only run of this name has recorded."""
    (file,) = paths.runs_dir().glob(f"{name}-*/metrics.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return {record["step"]: record["loss"] for record in records if "loss" in record}
