"""Start a function on N local ranks, join a process group, and run a Slurm cluster on this machine.

    local.py            ``launch``: run a function on N ranks of this machine
    rank_process.py     one rank as the caller sees it
    worker.py           the process of one rank
    failures.py         the messages about ranks that fail or hang
    process_group.py    the process group of ranks that torchrun or Slurm has started
    pocket.py           a Slurm cluster on this machine
    two_nodes.py        two nodes on this machine, with a slow link between them

Importing this package loads no torch.
"""

from dltutorial.launch.failures import RankFailed, RanksHang
from dltutorial.launch.local import launch, start_fork_server

__all__ = ["RankFailed", "RanksHang", "launch", "start_fork_server"]
