"""Checkpoints of ``dltutorial train``: everything that a run needs to continue as if it had never stopped.

Input: the model and the optimizer. Output: files in the run's folder ``checkpoints/``:

    step-00000100.pt    if every rank has the whole model: written by rank 0
    step-00000100/      if the ranks have shards: a folder, to which every rank writes its own shards

Only a complete checkpoint has such a name. All functions are called on all ranks. Chapter 10 explains the single file,
and chapter 17 the folder.

Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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


def is_first_rank() -> bool:
    """Return whether this rank writes what all ranks share."""
    return not dist.is_initialized() or dist.get_rank() == 0


def barrier() -> None:
    """Wait until every rank has reached this line."""
    if dist.is_initialized():
        dist.barrier()


def is_sharded(model: nn.Module) -> bool:
    """Return whether this rank has only shards of some parameters."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def save_checkpoint(run: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save what a run needs to continue. Only a complete checkpoint gets its name, and the newest two are kept.

    The model draws no random numbers during training, and the order of the samples follows from the seed and the step.
    Therefore the weights, the optimizer state and the step are enough.
    """
    folder = run / "checkpoints"
    if is_sharded(model):  # each rank writes its shards into a folder
        unfinished = folder / f"unfinished-{step}"
        weights, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": optimizer_state, "step": step}, checkpoint_id=unfinished)
        if is_first_rank():
            unfinished.rename(folder / f"step-{step:08d}")
    elif is_first_rank():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        write(state, folder / f"step-{step:08d}.pt")
    if is_first_rank():
        for old in sorted(folder.glob("step-*"))[:-2]:
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink()
    barrier()  # no rank ends before the checkpoint is complete


def load_checkpoint(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint that can be read. Return its step, or 0 if there is none."""
    for path in sorted((run / "checkpoints").glob("step-*"), reverse=True):
        if path.is_dir():
            weights, optimizer_state = get_state_dict(model, optimizer)
            state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state, "step": 0}
            dcp.load(state, checkpoint_id=path)  # the number of ranks that saved it may be another one
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optimizer_state)
            return state["step"]
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            print(f"{path} cannot be read ({type(error).__name__}); the checkpoint before it is used", file=sys.stderr)
            continue
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]
    return 0


def save_weights(run: Path, model: nn.Module) -> None:
    """Write ``weights.pt``, the state dict of the whole model."""
    everything = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=everything)
    if is_first_rank():
        write(weights, run / "weights.pt")
    barrier()


def write(state: dict, file: Path) -> None:
    """Write a file by ``torch.save``. After a kill or on a full disk there is no incomplete file of this name.

    Raises:
        CourseError: The file cannot be written.
    """
    with paths.atomic(file) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # torch's writer raises it for a full disk
            raise OSError(str(error).partition("\n")[0]) from error
