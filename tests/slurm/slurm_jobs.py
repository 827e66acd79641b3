"""Jobs of the tests: queued by the scripts of ``slurm/``, asked, warned and waited for."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dltutorial import paths

ROOT = Path(__file__).parents[2]
GOING = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD"}


class Refused(Exception):
    """Slurm does not take a job; in its own last line."""


def said(words, env):
    """What a command of Slurm's says; variables of a job that this process is in would pass for wishes."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env = {"DLTUTORIAL_PYTHON": sys.executable, "DLTUTORIAL_RUNS": str(paths.runs_dir().absolute()), **own, **env}
    done = subprocess.run(
        words, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    if done.returncode and "Invalid job id" not in done.stderr:
        raise Refused(done.stderr.strip().splitlines()[-1])
    return done.stdout


@dataclass(frozen=True)
class Job:
    """A job, or one task of a job array."""

    number: str
    output: Path
    env: dict

    def state(self):
        """Slurm's word for it, and how often it was started again."""
        form = "--Format=State:|,RestartCnt:|"
        line = said(["squeue", "--noheader", "--states=all", f"--jobs={self.number}", form], self.env) or "UNKNOWN|"
        word, restarts = line.split("|")[:2]
        return word, int(restarts or 0)

    def ended(self, timeout_s=250.0):
        """Its state, once it is over."""
        until_s = time.monotonic() + timeout_s
        while self.state()[0] in GOING:
            assert time.monotonic() < until_s, f"job {self.number} is still {self.state()[0]}"
            time.sleep(0.5)
        return self.state()

    def wait(self, timeout_s=250.0):
        """How often it was started again, once it has ended well."""
        word, restarts = self.ended(timeout_s)
        assert word == "COMPLETED", self.output.read_text()
        return restarts

    def warn(self):
        """Send the signal that Slurm sends before a job's time is over."""
        said(["scancel", "--batch", "--signal=USR1", self.number], self.env)

    def cancel(self):
        """End it."""
        said(["scancel", self.number], self.env)


def sbatch(script, *arguments, env, nodes=1, options=()):
    """Queue a script of ``slurm/``, or a file, as in a shell: ``source pocket.sh; sbatch …``."""
    file = Path(script) if script.endswith(".sbatch") else ROOT / "slurm" / f"{script}.sbatch"
    array = any(option.startswith("--array") for option in options)
    output = f"{paths.runs_dir().absolute()}/jobs/{file.stem}-{'%A_%a' if array else '%j'}.out"
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    words = ["sbatch", "--parsable", f"--nodes={nodes}", f"--output={output}", *options, str(file), *arguments]
    number = said(["bash", "-euc", 'source slurm/sites/pocket.sh; exec "$@"', "sbatch", *words], env).strip()
    return Job(number, Path(output.replace("%j", number).replace("%A", number)), env)


def losses(run):
    """The loss after each update that a run has recorded; a line that is being written is no record yet."""
    file = paths.runs_dir() / run / "progress.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return {r["step"]: r["loss"] for r in (json.loads(line) for line in lines if line.endswith("\n"))}


TINY = ("--preset", "smoke", "--dim", "32", "--depth", "1", "--eval-every", "0", "--log-every", "1")
