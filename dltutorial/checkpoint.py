"""Checkpoints of ``dltutorial train``: everything that a run needs to continue as if it had never stopped.

Input: the model and the optimizer. Output: files in the run's folder ``checkpoints/``:

    step-00000100.pt    if every rank has the whole model: written by rank 0
    step-00000100/      if the ranks have shards: a folder, to which every rank writes its own shards

Until a checkpoint is complete, it has a temporary name. Every rank must call each of these functions. Chapter 10
explains the single file, and chapter 17 explains the folder.

Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from dltutorial import paths
from dltutorial.distributed import barrier, is_rank_0

KEEP = 2  # if the newest checkpoint cannot be read, there is one before it


def is_sharded(model: nn.Module) -> bool:
    """Return whether this rank has only shards of some parameters."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def save_checkpoint(run: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save the weights, the optimizer state and the number of steps, and remove old checkpoints.

    That is enough, because the model draws no random numbers during training, and because the order of the samples
    follows from the seed and the step.
    """
    folder = run / "checkpoints"
    name = f"step-{step:08d}"
    if is_sharded(model):
        unfinished = folder / f"unfinished-{step}"
        weights, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": optimizer_state, "step": step}
        dcp.save(state, checkpoint_id=unfinished)  # returns on rank 0 after all ranks have written
        if is_rank_0():
            unfinished.rename(folder / name)
    elif is_rank_0():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        save_atomically(state, folder / f"{name}.pt")
    if is_rank_0():
        remove_old_checkpoints(folder)
    barrier()  # wait for rank 0


def remove_old_checkpoints(folder: Path) -> None:
    """Remove all checkpoints but the newest ones, and what a killed process has left unfinished."""
    for old in [*sorted(folder.glob("step-*"))[:-KEEP], *folder.glob("unfinished-*")]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def load_checkpoint(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint. If a file cannot be read, load the one before it.

    Returns:
        The number of steps of the checkpoint, or 0 if there is none.
    """
    for path in sorted((run / "checkpoints").glob("step-*"), reverse=True):
        if path.is_dir():
            return load_folder(path, model, optimizer)
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            print(f"{path} cannot be read ({type(error).__name__}); the checkpoint before it is used", file=sys.stderr)
            continue
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]
    return 0


def load_folder(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint of shards. It can have been saved by a different number of ranks.

    Returns:
        The number of steps of the checkpoint.
    """
    weights, optimizer_state = get_state_dict(model, optimizer)  # the tensors that dcp.load fills
    state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optimizer_state)
    return state["step"]


def save_weights(run: Path, model: nn.Module) -> None:
    """Write ``weights.pt``, the state dict of the whole model."""
    whole_model_on_cpu = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=whole_model_on_cpu)
    if is_rank_0():
        save_atomically(weights, run / "weights.pt")
    barrier()


def save_atomically(state: dict, file: Path) -> None:
    """Write a file by ``torch.save``. It appears under its name only if it is complete.

    Raises:
        CourseError: The file cannot be written, for example because the disk is full. ``paths.atomic`` raises it.
    """
    with paths.atomic(file) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # instead of an OSError, torch raises a RuntimeError for a full disk
            first_line = str(error).splitlines()[0]
            raise OSError(first_line) from error
