"""Run a script on two "nodes" of this machine, with a slow link between them.

Input: a Python file and its arguments.
Output: the script runs under torchrun, with two ranks on each node. Each node is a network namespace. Linux lets
ordinary users make namespaces, unless a site forbids it. ``slurm/pocket/two_nodes.sh`` does the work and explains it.

Source: the manual pages user_namespaces(7) and network_namespaces(7), https://man7.org/linux/man-pages/.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dltutorial import paths
from dltutorial.errors import CourseError
from dltutorial.launch import pocket

_LINK = "ip link add near type veth peer name far && tc qdisc add dev near root tbf rate 1gbit burst 128k latency 9s"


def missing() -> str:
    """Return what this machine lacks for two nodes, in words, or an empty text. It tries to make the link."""
    command = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "setpriv", "bash", "-c", _LINK]
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no {error.filename} here (it takes Linux; on Debian or Ubuntu: apt-get install iproute2 util-linux)"
    if done.returncode:
        return f"this machine lets you make no network of your own ({done.stderr.strip()})"
    return ""


def run(script: Sequence[str]) -> NoReturn:
    """Replace this process by the one that runs the script on two nodes.

    Args:
        script: A Python file, and its arguments.

    Raises:
        CourseError: There is no such file, or this machine cannot have two nodes.
    """
    if not script or not Path(script[0]).is_file():
        raise CourseError("pocket network: give a Python file that torchrun can run, and its arguments")
    reason = missing()
    if reason:
        raise CourseError(f"pocket network: {reason}")
    program = str(paths.course_folder("slurm") / "slurm" / "pocket" / "two_nodes.sh")
    os.execve(program, [program, *script], _environment())


def _environment() -> dict[str, str]:
    """Return the environment of this process. Its PATH begins with the folder of this Python's torchrun."""
    own_programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([own_programs, os.environ.get("PATH", os.defpath), pocket.SYSTEM])
    return {**os.environ, "PATH": path}
