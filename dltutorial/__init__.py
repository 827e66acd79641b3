"""Hands-on deep learning at scale: the helper library behind the notebooks.

Nothing heavy is imported here: ``import dltutorial`` takes milliseconds and loads no torch.
"""

__version__ = "0.6.0"
