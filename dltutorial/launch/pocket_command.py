"""``dltutorial pocket up|down|status``: what the command prints.

What a shell is to evaluate goes to standard output, what a person is to read to standard error, so that
``eval "$(dltutorial pocket up)"`` shows the one and runs the other. Exit status of ``status``: 0 if the cluster is up,
1 if not.
"""

import sys
import time

from dltutorial.launch import pocket


def run(action: str, nodes: int, name: str) -> int:
    """Do it and say so.

    Raises:
        CourseError: as ``pocket.up``.
    """
    return {"up": _up, "down": _down, "status": _status}[action](nodes, name)


def _up(nodes: int, name: str) -> int:
    begun_s = time.monotonic()
    cluster = pocket.up(nodes, name)
    _say(f"{nodes} nodes are up, after {time.monotonic() - begun_s:.2f} s: {', '.join(cluster.nodes)}")
    print(cluster.export)
    if sys.stdout.isatty():
        _say('paste the line above, or start with: eval "$(dltutorial pocket up)"; then try: srun -N 1 hostname')
    else:
        _say("next: source slurm/sites/pocket.sh; sbatch -N 2 slurm/train.sbatch; in the end: dltutorial pocket down")
    return 0


def _down(_nodes: int, name: str) -> int:
    _say(f"the cluster {name} has ended" if pocket.down(name) else f"there was no cluster {name}")
    return 0


def _status(_nodes: int, name: str) -> int:
    cluster = pocket.status(name)
    if cluster is None:
        others = ", ".join(pocket.names())
        _say(f"there is no cluster {name}; " + (f"there is: {others}" if others else "start it: dltutorial pocket up"))
        return 1
    if not cluster.answers:
        _say(f"the cluster {name} was killed; dltutorial pocket up starts it anew, pocket down removes what is left")
        return 1
    _say(" · ".join(f"{node} {state}" for node, state in pocket.states(cluster).items()))
    print(cluster.export)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)
