"""A function on N local ranks (``local``); jobs under Slurm; the pocket cluster. Importing it loads no torch."""

from dltutorial.launch.failures import RankFailed, RanksHang
from dltutorial.launch.local import launch, warm

__all__ = ["RankFailed", "RanksHang", "launch", "warm"]
