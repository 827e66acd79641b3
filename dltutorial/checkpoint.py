"""Checkpoints of ``dltutorial train``: everything that a run needs to continue as if it had never stopped.

Input: the model and the optimizer. Output: in the folder ``checkpoints/`` of the run

    step-00000100.pt    if every rank has the whole model (one rank, or DDP): a file of ``torch.save``, which rank 0
                        writes (chapter 10)
    step-00000100/      if the ranks have shards (DTensors): a folder of ``torch.distributed.checkpoint``, to which
                        every rank writes its own shards (chapter 17)

Each of them holds one dictionary with three keys. The code calls this dictionary ``state``.

    model        the weights, as a dictionary from the name of each parameter to its tensor
    optimizer    the state dict of AdamW: two running means (of the gradients and of their squares) and a step counter
                 for each parameter, and the settings of each group of parameters, such as the weight decay
    step         the number of steps that are done, an int

In the file, ``optimizer`` identifies a parameter by its number. In the folder, it identifies a parameter by its name.

Until a checkpoint is complete, it has a temporary name. Every rank must call ``save_checkpoint``, ``load_checkpoint``
and ``save_weights``. Loading a folder uses ``pickle``, and a pickle file can execute any code. Therefore resume only
your own runs.

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
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from dltutorial import paths
from dltutorial.distributed import barrier, broadcast_from_rank_0, is_rank_0, is_true_on_all_ranks
from dltutorial.errors import CourseError, first_line

CHECKPOINTS_TO_KEEP = 2  # the older one is a spare, in case the newest one cannot be read


def is_sharded(model: nn.Module) -> bool:
    """Return whether a parameter is a DTensor, of which this rank has only a part."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def save_checkpoint(run: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save the weights, the optimizer state and the number of steps, and remove old checkpoints.

    That is enough, because the model draws no random numbers during training, and because the samples of each step and
    their random shifts follow from the seed.

    Raises:
        CourseError: A file cannot be written, for example because the disk is full.
    """
    folder = run / "checkpoints"
    name = f"step-{step:08d}"
    if is_sharded(model):
        unfinished = folder / f"unfinished-{step}"
        weights, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": optimizer_state, "step": step}
        try:
            dcp.save(state, checkpoint_id=unfinished)  # when this returns on rank 0, all ranks have written
        except CheckpointException as error:
            raise CourseError(
                f"cannot write {unfinished}: {message_of_failed_rank(error)}; make room, then resume"
            ) from error
        if is_rank_0():
            unfinished.rename(folder / name)
    elif is_rank_0():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        save_atomically(state, folder / f"{name}.pt")
    if is_rank_0():
        remove_old_checkpoints(folder)
    barrier()  # wait for rank 0


def remove_old_checkpoints(folder: Path) -> None:
    """Remove all checkpoints but the newest ones, and files that a killed process did not finish."""
    for old in sorted(folder.glob("step-*"))[:-CHECKPOINTS_TO_KEEP]:
        remove(old)
    for unfinished in [*folder.glob("unfinished-*"), *folder.glob(".*.partial")]:
        remove(unfinished)


def remove(path: Path) -> None:
    """Remove a file or a folder. A folder is renamed first, so a kill never leaves a part of it under its name."""
    if path.is_dir():
        renamed = path.with_name(f"unfinished-{path.name}")
        path.rename(renamed)
        shutil.rmtree(renamed)
    else:
        path.unlink()


def load_checkpoint(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint. If it cannot be read, load the one before it.

    Returns:
        The number of steps of the checkpoint, or 0 if there is none.

    Raises:
        CourseError: No checkpoint can be read, or the run was sharded and now is not, or the other way round.
        RuntimeError: A checkpoint was read, but it does not fit the model, or the memory is too small.
    """
    newest_first = broadcast_from_rank_0(sorted((run / "checkpoints").glob("step-*"), reverse=True))
    for path in newest_first:
        if path.is_dir() != is_sharded(model):
            raise CourseError(
                f"{path} was saved by a run with shards and this run has none, or the other way round; "
                "resume on several ranks if it has shards, and on one rank if it has none"
            )
        state = try_to_read(path, model, optimizer)
        if is_true_on_all_ranks(state is not None):
            assert state is not None
            apply_state(state, model, optimizer)
            return state["step"]
        if is_rank_0():
            path.rename(path.with_name(f"unreadable-{path.name}"))
    if newest_first:
        raise CourseError(f"no checkpoint in {run} can be read; start a new run without --resume")
    return 0


def try_to_read(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Read a checkpoint, and return ``state``. If the files are damaged, print a line and return None."""
    try:
        if path.is_dir():
            return read_folder(path, model, optimizer)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, CheckpointException) as error:
        if not is_damage(error):
            raise
        print(f"{path} cannot be read ({type(error).__name__}); looking for an older one", file=sys.stderr)
        return None


def is_damage(error: BaseException) -> bool:
    """Return whether an error comes from damaged files, and not from too little memory or from another model."""
    if isinstance(error, CheckpointException):
        return all(is_damage(cause) for cause, _ in error.failures.values())  # failures: rank → (exception, traceback)
    has_other_shape = isinstance(error, ValueError) and "Size mismatch" in str(error)
    lacks_parameter = isinstance(error, RuntimeError) and "Missing key" in str(error)
    return not (is_too_little_memory(error) or has_other_shape or lacks_parameter)


def is_too_little_memory(error: BaseException) -> bool:
    """Return whether an error means that the memory of the GPU or of the CPU is too small. Then the files may be good.

    For a GPU, torch raises an OutOfMemoryError, which is a RuntimeError, too. For the CPU, it raises a RuntimeError
    that differs from others only in its message. Python itself raises a MemoryError.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def read_folder(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Read this rank's shards of a sharded checkpoint, and return ``state``. More or fewer ranks may have saved it."""
    weights, optimizer_state = get_state_dict(model, optimizer)  # dcp.load writes into existing tensors
    state: dict[str, Any] = {"model": weights, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=path)
    return state


def apply_state(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Copy the weights of a checkpoint to the model, and its optimizer state to the optimizer."""
    if is_sharded(model):
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    else:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


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
        CourseError: The file cannot be written, for example because the disk is full.
    """
    with paths.atomic(file) as temporary:  # it makes a CourseError from an OSError
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # torch raises it if the disk is full
            raise OSError(first_line(error)) from error


def message_of_failed_rank(error: CheckpointException) -> str:
    """Return the message of a rank that could not write."""
    rank, (cause, _) = next(iter(error.failures.items()))  # failures: rank → (exception, traceback)
    return f"rank {rank}: {first_line(cause)}"
