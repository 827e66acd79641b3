"""Where heavy work may run: a login node is shared by everybody who logs in, so nothing trains there.

In: the environment. Out: the sign of a login node, and ``refuse_on_login``, which heavy calls begin with: training,
simulating data, starting ranks. Light cells (plotting, models of cost, submitting jobs) run anywhere.

That Slurm's commands are installed says nothing: a laptop with a pocket cluster has them, too. So a node is a login
node only if its site says so. The first line that holds decides:

| sign | then this is |
|---|---|
| ``DLTUTORIAL_NODE=compute`` | a compute node, whatever else is set |
| ``SLURM_JOB_ID`` and ``SLURMD_NODENAME`` | a compute node: slurmd started this process, or a parent of it |
| ``DLTUTORIAL_NODE=login`` | a login node; ``slurm/sites/*.sh`` and kernels installed for a site set it |
| what a site sets on all its nodes, see ``_SITES`` | a login node of that site |
| none of them | a machine of your own |

``SLURM_JOB_ID`` alone is not enough: ``salloc`` opens a shell with it, at many sites on the login node.
``SLURMD_NODENAME`` is set for job scripts and for tasks: https://slurm.schedmd.com/sbatch.html, "output environment
variables".
"""

import os
from collections.abc import Mapping
from pathlib import Path

from dltutorial.errors import CourseError

# Variables that these sites set on login and compute nodes alike, and the beginning of their values.
# NERSC_HOST, LMOD_SYSTEM_NAME: https://github.com/AMReX-Codes/amrex, Src/Base/AMReX_Machine.cpp, "Known machines".
# SYSTEMNAME: https://apps.fz-juelich.de/jsc/hps/juwels/environment.html; all systems of JSC begin with "ju".
_SITES = (("NERSC_HOST", ""), ("SYSTEMNAME", "ju"), ("LMOD_SYSTEM_NAME", "frontier"))
# JSC's nodes have it, also where SYSTEMNAME is not set: https://github.com/easybuilders/JSC, Custom_Hooks.
_JSC_FILE = Path("/etc/FZJ/systemname")


def login_sign(env: Mapping[str, str] | None = None, jsc_file: Path = _JSC_FILE) -> str | None:
    """The sign by which this is a login node; None in a Slurm job and on a machine of your own.
    CourseError: ``DLTUTORIAL_NODE`` is neither login nor compute.
    """
    env = os.environ if env is None else env
    said = env.get("DLTUTORIAL_NODE", "")
    if said not in ("", "login", "compute"):
        raise CourseError(f"DLTUTORIAL_NODE={said}: no such kind of node; choose login or compute, or unset it")
    if said == "compute" or _in_job(env):
        return None
    signs = ["DLTUTORIAL_NODE=login"] if said else []
    for name, begin in _SITES:
        if env.get(name) and env[name].startswith(begin):
            signs.append(f"{name}={env[name]}, and no Slurm job")
    signs += [f"{jsc_file} is there, and no Slurm job"] if jsc_file.is_file() else []
    return signs[0] if signs else None


def told(env: Mapping[str, str] | None = None, jsc_file: Path = _JSC_FILE) -> str:
    """What this is, in a few words: a login node and by which sign, a Slurm job, or this machine.
    CourseError: ``DLTUTORIAL_NODE`` is neither login nor compute.
    """
    env = os.environ if env is None else env
    sign, hub = login_sign(env, jsc_file), ", through JupyterHub" if "JUPYTERHUB_SERVICE_PREFIX" in env else ""
    if sign:
        return f"a login node ({sign}){hub}: light cells run, training is sent to Slurm"
    return ("a Slurm job" if _in_job(env) else "this machine") + hub


def refuse_on_login(what: str, instead: str = "") -> None:
    """Begin a heavy call with this.

    Args:
        what: the call, as the beginning of a sentence.
        instead: what to do, in place of working in a job or sending the call to one.

    Raises:
        CourseError: this is a login node.
    """
    if sign := login_sign():
        instead = instead or "open the notebook in a job (sbatch -N 1 slurm/notebook.sbatch), or sbatch a script"
        raise CourseError(
            f"{what} does not run on a login node ({sign}), which everybody shares; {instead}; "
            "if this is no login node, set DLTUTORIAL_NODE=compute"
        )


def _in_job(env: Mapping[str, str]) -> bool:
    return bool(env.get("SLURM_JOB_ID") and env.get("SLURMD_NODENAME"))
