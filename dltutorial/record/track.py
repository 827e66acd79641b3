"""Experiment tracking: a training run writes its scalars to TensorBoard and to Weights & Biases (W&B).

In: the scalars of a training step. Out: the folders ``tensorboard/`` and ``wandb/`` in the folder of the run. W&B
stays offline unless the variable ``WANDB_MODE`` says otherwise. Offline it needs no key and no network.
Sources: pytorch.org/docs/stable/tensorboard.html and docs.wandb.ai/ref/python/functions/init.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dltutorial.errors import CourseError


class Tracker:
    """Writes the scalars of one training run to the chosen kinds of trackers."""

    def __init__(self, kinds: Collection[str], folder: Path, config: Mapping[str, Any], first_step: int = 0):
        """Start the trackers.

        Args:
            kinds: ``tensorboard``, ``wandb``, both, or none.
            folder: the folder of the run.
            config: the settings of the run, which W&B shows beside its curves.
            first_step: the first step that is going to be logged. A run that was killed may have logged this step and
                later ones. TensorBoard does not show these old values. W&B cannot remove them offline, so there each
                part of a resumed run is a run of its own.

        Raises:
            CourseError: W&B cannot start.
        """
        self._wandb = _start_wandb(folder, config) if "wandb" in kinds else None
        self._tensorboard = None
        if "tensorboard" in kinds:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds, so only who needs it imports it

            self._tensorboard = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of one step."""
        if self._tensorboard:
            for name, value in scalars.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb:
            self._wandb.log(dict(scalars), step=step)

    def close(self) -> None:
        """Write to disk what is still in memory. The tracker cannot be used afterwards."""
        if self._tensorboard:
            self._tensorboard.close()
        if self._wandb:
            self._wandb.finish()


def _start_wandb(folder: Path, config: Mapping[str, Any]) -> Any:
    """Start a W&B run that records the config and the scalars, and nothing about the machine, the user or the code."""
    import wandb

    settings = wandb.Settings(
        console="off",  # what the program prints is not recorded
        disable_code=True,
        disable_git=True,
        host="",
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,  # user, command line and paths
        x_disable_stats=True,  # load of the machine
    )
    mode: Any = os.environ.get("WANDB_MODE", "offline")
    folder.mkdir(parents=True, exist_ok=True)  # W&B would choose another folder if this one did not exist
    try:
        return wandb.init(
            project="dltutorial", name=folder.name, dir=str(folder), config=dict(config), mode=mode, settings=settings
        )
    except (wandb.Error, ValueError) as error:  # a mode that does not exist is a ValueError
        reason = str(error).partition("\n")[0]
        advice = "run `wandb login`, or unset WANDB_MODE to stay offline"
        raise CourseError(f"W&B cannot start in mode {mode!r}: {reason}; {advice}") from None
