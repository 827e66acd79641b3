"""Say whether this is a login node, on which the course does no heavy work, because all users share it.

The input is the environment. The output is the sign of a login node, or an error of ``refuse_on_login``. Heavy
functions (training, simulating data, starting ranks) call ``refuse_on_login`` first. Light cells (plotting, models of
cost, submitting jobs) run anywhere.

The commands of Slurm are no sign, because a laptop with a pocket cluster has them, too. Therefore a node is a login
node only if its site says so. The first row that applies decides.

    DLTUTORIAL_NODE=compute                   a compute node, whatever else is set
    SLURM_JOB_ID and SLURMD_NODENAME          a compute node, because slurmd started this process or a parent of it
    DLTUTORIAL_NODE=login                     a login node; slurm/sites/*.sh and kernels installed for a site set it
    what a site sets on its nodes (_SITES)    a login node of that site
    none of them                              a machine of your own

``SLURM_JOB_ID`` alone is not enough, because ``salloc`` opens a shell with it, at many sites on the login node.
``SLURMD_NODENAME`` is set for job scripts and for tasks: https://slurm.schedmd.com/sbatch.html, "output environment
variables".
"""

import os
from collections.abc import Mapping
from pathlib import Path

from dltutorial.errors import CourseError

# These sites set these variables on login and compute nodes. The second entry is the beginning of the value.
# NERSC_HOST, LMOD_SYSTEM_NAME: https://github.com/AMReX-Codes/amrex, Src/Base/AMReX_Machine.cpp, "Known machines".
# SYSTEMNAME: https://apps.fz-juelich.de/jsc/hps/juwels/environment.html; all systems of JSC begin with "ju".
_SITES = (("NERSC_HOST", ""), ("SYSTEMNAME", "ju"), ("LMOD_SYSTEM_NAME", "frontier"))
# All nodes of JSC have this file: https://github.com/easybuilders/JSC, Custom_Hooks.
_JSC_FILE = Path("/etc/FZJ/systemname")


def login_sign(env: Mapping[str, str] | None = None, jsc_file: Path = _JSC_FILE) -> str | None:
    """Return the sign by which this is a login node.

    Args:
        env: The environment. None means that of this process.
        jsc_file: A file that the nodes of JSC have.

    Returns:
        The sign in words, or None in a Slurm job and on a machine of your own.

    Raises:
        CourseError: ``DLTUTORIAL_NODE`` is neither login nor compute.
    """
    env = os.environ if env is None else env
    kind = env.get("DLTUTORIAL_NODE", "")
    if kind not in ("", "login", "compute"):
        raise CourseError(f"DLTUTORIAL_NODE={kind}: no such kind of node; choose login or compute, or unset it")
    if kind == "compute" or _in_job(env):
        return None
    if kind == "login":
        return "DLTUTORIAL_NODE=login"
    for name, beginning in _SITES:
        value = env.get(name)
        if value and value.startswith(beginning):
            return f"{name}={value}, and no Slurm job"
    if jsc_file.is_file():
        return f"{jsc_file} is there, and no Slurm job"
    return None


def description() -> str:
    """Describe in a few words where this process runs: on a login node, in a Slurm job, or on this machine."""
    sign = login_sign()
    hub = ", through JupyterHub" if "JUPYTERHUB_SERVICE_PREFIX" in os.environ else ""
    if sign:
        return f"a login node ({sign}){hub}: light cells run, training is sent to Slurm"
    if _in_job(os.environ):
        return f"a Slurm job{hub}"
    return f"this machine{hub}"


def refuse_on_login(what: str, instead: str = "") -> None:
    """Raise an error on a login node. Heavy functions call this first.

    Args:
        what: The heavy work, as the beginning of a sentence.
        instead: What to do. Without it, the message says how to work in a job.

    Raises:
        CourseError: This is a login node.
    """
    sign = login_sign()
    if sign:
        todo = instead or "open the notebook in a job (sbatch -N 1 slurm/notebook.sbatch), or sbatch a script"
        raise CourseError(
            f"{what} does not run on a login node ({sign}), which everybody shares; {todo}; "
            "if this is no login node, set DLTUTORIAL_NODE=compute"
        )


def _in_job(env: Mapping[str, str]) -> bool:
    """Return whether slurmd started this process, or a parent of it."""
    return bool(env.get("SLURM_JOB_ID") and env.get("SLURMD_NODENAME"))
