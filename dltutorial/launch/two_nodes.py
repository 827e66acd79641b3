"""Two "nodes" on this machine, with a slow link between them: ``slurm/pocket/two_nodes.sh``, which says how.

In: a script and its arguments. Out: it runs under torchrun, two ranks on each node, in network namespaces of their
own. Linux lets ordinary users make those (user_namespaces(7), network_namespaces(7)), unless a site forbids it.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket_daemons

_FILE = "slurm/pocket/two_nodes.sh"


def missing() -> str:
    """What keeps this machine from having two nodes, in words; empty where nothing does."""
    link = "ip link add near type veth peer name far && tc qdisc add dev near root tbf rate 1gbit burst 128k latency 9s"
    tried = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "setpriv", "bash", "-c", link]
    try:
        ended = subprocess.run(tried, env=_environment(), capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no {error.filename} here (it takes Linux; on Debian or Ubuntu: apt-get install iproute2 util-linux)"
    return f"this machine lets you make no network of your own ({ended.stderr.strip()})" if ended.returncode else ""


def run(script: Sequence[str]) -> NoReturn:
    """Become what runs a Python file, with its arguments, on two nodes. CourseError: no such file, or none here."""
    if not script or not Path(script[0]).is_file():
        told = f"{script[0]!r} is no file" if script else "which script?"
        raise CourseError(f"pocket network: {told}; give a Python file that torchrun can run, and its arguments")
    if why := missing():
        raise CourseError(f"pocket network: {why}")
    program = str(paths.course_folder("slurm") / _FILE)
    os.execve(program, [program, *script], _environment())


def _environment() -> dict[str, str]:
    """This one, with this Python's torchrun first, and the folders of administrators' programs last."""
    here = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([here, os.environ.get("PATH", os.defpath), pocket_daemons.SYSTEM])}
