"""Start a function on N local ranks (``local``), join a process group, and run a Slurm cluster on this machine.

Importing this package loads no torch.
"""

from dltutorial.launch.failures import RankFailed, RanksHang
from dltutorial.launch.local import launch, warm

__all__ = ["RankFailed", "RanksHang", "launch", "warm"]
