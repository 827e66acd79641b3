"""What Slurm says when it does not want a job, and which setting to look at.

In: the words of sbatch, squeue, scancel. Out: one line, Slurm's words first. The words are those of ``slurm_strerror``
in Slurm 22.05; sites add their own, which pass through with a general hint.
"""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

_SITE = "a site's file in slurm/sites shows how"
_NO_MUNGE = (
    "munge, which signs every message, is not running: if it was a pocket cluster's, dltutorial pocket down, then up; "
    "else tell the help desk"
)
_HINTS = (
    (r"munge|authentication", _NO_MUNGE),
    (
        r"configuration source|DNS SRV",
        "no cluster is configured here: start one: dltutorial pocket up; or set SLURM_CONF",
    ),
    (
        r"contact slurm controller|Connection refused|Socket timed out|Communication|Zero Bytes|socket error|endpoint",
        "the controller does not answer: if it was a pocket cluster, dltutorial pocket up starts it again",
    ),
    (r"associat|accounting/QOS|submit limit", "your account's limits; sacctmgr show associations tells them"),
    (r"account", f"set SBATCH_ACCOUNT to your project; {_SITE}"),
    (r"qos", f"set SBATCH_QOS to one of the site's; {_SITE}"),
    (r"partition", f"set SBATCH_PARTITION to one that sinfo lists; {_SITE}"),
    (r"time ?limit", "ask for less time: -t, or SBATCH_TIMELIMIT; sinfo shows each partition's limit"),
    (r"feature|constraint", f"set SBATCH_CONSTRAINT; {_SITE}"),
    (r"gres|generic resource|gpu", f"set SBATCH_GPUS_PER_NODE or SBATCH_GRES to what a node has; {_SITE}"),
    (r"node count|node configuration|more processors|CPU count", "ask for fewer nodes (-N) or cores; sinfo shows them"),
    (r"Invalid job id|already completing", "the job has ended; squeue lists those that have not"),
)
_PREFIX = re.compile(r"^\s*(sbatch|srun|squeue|scancel|sacct|scontrol|salloc): (error: |fatal: )?")
_INSTALL = "log in to a cluster, or: apt-get install --no-install-recommends slurm-wlm munge; dltutorial pocket up"


def munge_problem(env: Mapping[str, str]) -> str | None:
    """One line if this cluster relies on munge and munge does not answer: sbatch would take 50 s to say so."""
    try:
        settings = Path(env.get("SLURM_CONF") or "/etc/slurm/slurm.conf").read_text()
    except OSError:
        return None
    if not re.search(r"^AuthType=auth/munge", settings, re.MULTILINE | re.IGNORECASE) or not hasattr(socket, "AF_UNIX"):
        return None
    named = re.search(r"^AuthInfo=.*socket=([^,\s]+)", settings, re.MULTILINE | re.IGNORECASE)
    path = named[1] if named else "/run/munge/munge.socket.2"
    try:
        with socket.socket(socket.AF_UNIX) as munge:
            munge.connect(path)
    except OSError as error:
        return f"no answer from munge ({os.strerror(error.errno or 0)}); {_NO_MUNGE}"
    return None


def explained(said: str, missing: str = "") -> str:
    """One line for a command that failed with these words, or that is not there at all."""
    missing = missing or (match[1] if (match := re.search(r"(\w+): (command )?not found", said)) else "")
    if missing:
        return f"Slurm is not installed here (no {missing}); {_INSTALL}"
    lines = [_PREFIX.sub("", line).strip() for line in said.splitlines() if line.strip()] or ["Slurm gives no reason"]
    # A site's file that wants a variable: "…/perlmutter.sh: line 7: SBATCH_ACCOUNT: export it first".
    if match := re.search(r"\.sh: line \d+: (\w+: .*)", said):
        return match[1]
    told = lines[-1].removeprefix("Batch job submission failed: ")
    for pattern, hint in _HINTS:
        if re.search(pattern, said, re.IGNORECASE):
            return f"Slurm says: {told}; {hint}"
    return f"Slurm says: {told}; sbatch's manual and your site's documentation tell more"
