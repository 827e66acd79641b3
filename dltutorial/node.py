"""Where heavy work may run: a login node is shared by everybody who logs in, so nothing trains there.

In: the environment. Out: a ``Node``, and ``refuse_on_login``, which heavy calls begin with: training, simulating data,
starting ranks, benchmarks. Light cells (looking, plotting, models of cost, submitting jobs) run anywhere.

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
from dataclasses import dataclass
from pathlib import Path

from dltutorial.errors import CourseError

KINDS = ("login", "compute")

# Variables that these sites set on login and compute nodes alike, and the beginning of their values.
# NERSC_HOST, LMOD_SYSTEM_NAME: https://github.com/AMReX-Codes/amrex, Src/Base/AMReX_Machine.cpp, "Known machines".
# SYSTEMNAME: https://apps.fz-juelich.de/jsc/hps/juwels/environment.html; all systems of JSC begin with "ju".
_SITES = (("NERSC_HOST", ""), ("SYSTEMNAME", "ju"), ("LMOD_SYSTEM_NAME", "frontier"))
# JSC's nodes have it, also where SYSTEMNAME is not set: https://github.com/easybuilders/JSC, Custom_Hooks.
_JSC_FILE = Path("/etc/FZJ/systemname")


@dataclass(frozen=True)
class Node:
    """What this process runs on, as far as heavy work goes.

    Attributes:
        kind: login, job (a Slurm job), or own (a machine of your own, or one that you call a compute node).
        why: the sign that told.
        through_hub: a JupyterHub has started the server that this runs under.
    """

    kind: str
    why: str = ""
    through_hub: bool = False

    @property
    def is_login(self) -> bool:
        """Whether heavy work has to go to Slurm."""
        return self.kind == "login"

    @property
    def told(self) -> str:
        """The same for people, in a few words."""
        hub = ", through JupyterHub" if self.through_hub else ""
        if self.is_login:
            return f"a login node ({self.why}){hub}: light cells run, training is sent to Slurm"
        return ("a Slurm job" if self.kind == "job" else "this machine") + hub


def here(env: Mapping[str, str] | None = None, jsc_file: Path = _JSC_FILE) -> Node:
    """What this process runs on.

    Raises:
        CourseError: ``DLTUTORIAL_NODE`` is neither login nor compute.
    """
    env = os.environ if env is None else env
    hub = "JUPYTERHUB_SERVICE_PREFIX" in env
    said = env.get("DLTUTORIAL_NODE", "")
    if said and said not in KINDS:
        raise CourseError(f"DLTUTORIAL_NODE={said}: no such kind of node; choose login or compute, or unset it")
    if said == "compute":
        return Node("own", "DLTUTORIAL_NODE=compute", hub)
    if env.get("SLURM_JOB_ID") and env.get("SLURMD_NODENAME"):
        return Node("job", "SLURM_JOB_ID is set", hub)
    if said == "login":
        return Node("login", "DLTUTORIAL_NODE=login", hub)
    for name, start in _SITES:
        value = env.get(name, "")
        if value and value.startswith(start):
            return Node("login", f"{name}={value}, and no Slurm job", hub)
    if jsc_file.is_file():
        return Node("login", f"{jsc_file} is there, and no Slurm job", hub)
    return Node("own", "", hub)


def refuse_on_login(what: str, instead: str = "") -> None:
    """Begin a heavy call with this.

    Args:
        what: the call, as the beginning of a sentence.
        instead: what to do, in place of working in a job or sending the call to one.

    Raises:
        CourseError: this is a login node.
    """
    node = here()
    if node.is_login:
        instead = instead or (
            "open the notebook in a job (sbatch -N 1 slurm/notebook.sbatch), or send a script to one (sbatch)"
        )
        raise CourseError(
            f"{what} does not run on a login node ({node.why}), which everybody shares; {instead}; "
            "if this is no login node, set DLTUTORIAL_NODE=compute"
        )
