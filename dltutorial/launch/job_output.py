"""What a job writes: the end of its output, the line that tells why it failed, the records of a training run.

In: a ``Job``, or the name of a run. Out: lines, records. All of it may be read while the job runs.
"""

import json
import re

from dltutorial import paths
from dltutorial.launch.job import Job


def tail(job: Job, lines: int = 10) -> list[str]:
    """The last lines of its output; a bar that rewrites its line comes as it last looked."""
    try:
        text = job.output.read_bytes()[-(2**20) :].decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n") if line.strip()][-lines:]


def progress(run: str) -> list[dict]:
    """What a training run has recorded so far: one dict for each record, with step, loss, scores, samples_per_s."""
    try:
        lines = (paths.inside(paths.runs_dir(), run) / "progress.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def cause(job: Job) -> str:
    """The line of a failed job's output that tells most: our own, else the first task that ended, else an error."""
    lines = tail(job, 60)
    for pattern, among in (
        (r"dltutorial: ", lines),
        (r"srun: error: .*(Killed|Exited|fault|Aborted|Memory)", lines),
        (r"error|Error", lines[::-1]),
    ):
        if found := next((line.strip() for line in among if re.search(pattern, line)), ""):
            return found
    return ""
