"""Jobs of the tests: submitted by the scripts of ``slurm/``."""

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
    """What a command of Slurm prints. The variables of a job that runs these tests stay out of its environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env = {"DLTUTORIAL_PYTHON": sys.executable, "DLTUTORIAL_RUNS": str(paths.runs_dir().absolute()), **own, **env}
    done = subprocess.run(
        words, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 or "Invalid job id" in done.stderr, done.stderr
    return done.stdout


@dataclass(frozen=True)
class Job:
    """A job or a job array."""

    number: str
    output: Path
    env: dict

    def state(self):
        """Slurm's word for it, and how often it was started again."""
        form = "--Format=State:|,RestartCnt:|"
        words = ["squeue", "--noheader", "--states=all", f"--jobs={self.number}", form]
        line = output_of(words, self.env) or "UNKNOWN|"
        word, restarts = line.split("|")[:2]
        return word, int(restarts or 0)

    def wait(self, timeout_s=250.0):
        """How often it was started again, once it has ended well."""
        wait_for(lambda: self.state()[0] not in ACTIVE, timeout_s)
        word, restarts = self.state()
        assert word == "COMPLETED", self.output.read_text()
        return restarts

    def wait_until_gone(self, timeout_s=300.0):
        """Wait until the queue holds no task of this job array."""
        words = ["squeue", "--noheader", f"--jobs={self.number}"]
        wait_for(lambda: not output_of(words, self.env).strip(), timeout_s)

    def warn(self):
        """Send the signal that Slurm sends before a job's time is over."""
        output_of(["scancel", "--batch", "--signal=USR1", self.number], self.env)


def sbatch(script, *arguments, env, nodes=1, options=()):
    """Submit a script of ``slurm/`` as in a shell: ``source pocket.sh; sbatch …``."""
    file = ROOT / "slurm" / f"{script}.sbatch"
    array = any(option.startswith("--array") for option in options)
    output = f"{paths.runs_dir().absolute()}/jobs/{script}-{'%A_%a' if array else '%j'}.out"
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    words = ["sbatch", "--parsable", f"--nodes={nodes}", f"--output={output}", *options, str(file), *arguments]
    number = output_of(["bash", "-euc", 'source slurm/sites/pocket.sh; exec "$@"', "sbatch", *words], env).strip()
    return Job(number, Path(output.replace("%j", number)), env)


def losses(run):
    """The loss after each update that a run has recorded; a line that is being written is no record yet."""
    file = paths.runs_dir() / run / "progress.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return {r["step"]: r["loss"] for r in (json.loads(line) for line in lines if line.endswith("\n"))}
