"""Checkpoints: everything a run needs to go on as if it had never stopped, in files that are whole or not there.

In: the live parts of a run. Out: ``<run>/checkpoints/step-00000040-<digest>.pt``, an ordinary ``torch.save`` of plain
containers and tensors. It is written under a hidden name, synced to disk, and only then takes its own, which holds a
digest of its bytes: a kill at any moment leaves the checkpoints before it, and one that was cut or changed is passed
over, but kept. Read with ``weights_only=True`` it executes nothing. docs.pytorch.org, "Serialization semantics".

Where weights lie in shards every rank writes its tensors beside the checkpoint, into ``step-00000040-<digest>.shard``;
then rank 0 writes the checkpoint, with the digests of these files in place of the tensors. A file that no checkpoint
names counts for nothing. Read, a checkpoint is whole again, for any mesh and any number of ranks.

How much data a run has seen is stored as the number of *global* batches. ``data.sampling`` works the order out from
that alone, so a run may go on with another number of ranks and see the same batches.
"""

import contextlib
import copy
import hashlib
import io
import math
import os
import pickle
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from dltutorial import paths
from dltutorial.engine.distributed import all_or_none, gather_objects, rank
from dltutorial.engine.loop import TrainState
from dltutorial.errors import CheckpointError, CourseError
from dltutorial.parallel.tensor import joined

KEEP = 2  # the newest, and one to fall back on should it be damaged
_FORMAT = 2
_NAME = re.compile(r"step-(\d{8,})-([0-9a-f]{16})\.pt")
_SHARD = re.compile(r"step-(\d{8,})-([0-9a-f]{16})\.shard")


class DamagedError(CheckpointError):
    """A file is no whole checkpoint: another may serve."""


@dataclass(frozen=True)
class Checkpoint:
    """A run between two updates.

    Attributes:
        recipe: its knobs.
        data_id: stands for the data set it was trained on.
        step: updates made.
        global_batches: batches consumed, counted over all ranks together: the position in the data's order.
        model, optimizer: their ``state_dict``.
        scaler: that of fp16's loss scaling; None for other precisions.
        random: for each rank the states of all generators that a model or an augmentation may draw from.
        losses_N: losses since the last record, which the next record is to average.
        scores: the last validation's.
        shards: digests of the files that hold all ranks' parts of model and optimizer, if there are such files.
    """

    recipe: dict
    data_id: str
    step: int
    global_batches: int
    model: dict
    optimizer: dict
    scaler: dict | None
    random: list
    losses_N: Tensor
    scores: dict
    shards: list


def take(state: TrainState, recipe: object, data_id: str = "") -> Checkpoint:
    """The state of a run. It shares memory with it: save it before the next update. Several ranks take it together."""
    weights, averages = state.mesh.state(state.optimizer)
    return Checkpoint(
        recipe=dict(vars(recipe)), data_id=data_id, step=state.step, global_batches=state.step,
        model=weights, optimizer=averages,
        scaler=state.precision.scaler.state_dict() if state.precision.scaler else None,
        random=gather_objects(random_states()),
        losses_N=torch.stack(state.losses).cpu() if state.losses else torch.empty(0),
        scores=dict(state.scores),
        shards=[""] if state.mesh.is_sharded else [],  # to be written
    )  # fmt: skip


def restore(checkpoint: Checkpoint, state: TrainState) -> None:
    """Put a checkpoint into the live parts of a run, on whatever device they are.

    A rank that the checkpoint does not know keeps the random states it has.
    CheckpointError: it belongs to another model, optimizer or precision.
    """
    optimizer, scaler = state.optimizer, state.precision.scaler
    if (scaler is None) != (checkpoint.scaler is None):
        raise CheckpointError("the checkpoint is of a run in another precision; resume with its precision")
    groups = [dict(group) for group in optimizer.param_groups]
    try:
        weights, averages = state.mesh.placed(checkpoint.model, checkpoint.optimizer)
        if any(weights[name].dtype != w.dtype for name, w in state.model.state_dict().items() if name in weights):
            raise ValueError("its weights are numbers of another kind")
        state.model.load_state_dict(weights)
        state.optimizer.load_state_dict(averages)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            if isinstance(before["lr"], Tensor):  # a CUDA graph reads this very tensor; torch has put a copy there
                before["lr"].fill_(float(group["lr"]))
            group.update({name: value for name, value in before.items() if name != "params"})  # the recipe's
        if hasattr(optimizer, "optim"):  # of shared averages, those of this rank; torch has put a copy beside them
            optimizer.state.clear()
            optimizer = optimizer.optim
        known = [p for group in optimizer.param_groups for p in group["params"]]
        for w in known if not optimizer.state and checkpoint.step else optimizer.state:
            shapes = {name: w.shape if v.ndim else v.shape for name, v in _remembered(optimizer, w).items()}
            if {name: v.shape for name, v in optimizer.state[w].items()} != shapes:  # torch looks at the next update
                raise ValueError("its optimizer remembers other layers")
            optimizer.state[w] = {name: v.clone() for name, v in optimizer.state[w].items()}  # own memory for each
        if scaler and checkpoint.scaler:
            scaler.load_state_dict(checkpoint.scaler)
        if rank() < len(checkpoint.random):
            set_random_states(checkpoint.random[rank()])
    except Exception as error:  # torch, NumPy and Python name no common base for what they cannot take
        why = str(error).partition("\n")[0].rstrip(":. ") or type(error).__name__
        raise CheckpointError(f"it is a checkpoint of another model ({why}); resume with its code") from error
    device = next(state.model.parameters()).device
    state.step, state.losses = checkpoint.step, list(checkpoint.losses_N.to(device))
    state.scores = checkpoint.scores


def _remembered(optimizer: torch.optim.Optimizer, layer: Tensor) -> dict[str, Tensor]:
    """What an optimizer keeps of a layer: of a copy of it that updates a single number."""
    w = torch.zeros(1, dtype=layer.dtype, device=layer.device, requires_grad=True)
    w.grad = torch.zeros_like(w)
    other = copy.copy(optimizer)
    options = {**other.param_groups[0], "params": [w], "lr": 0.0, "capturable": False}  # that, not on a CPU
    other.param_groups, other.state = [options], defaultdict(dict)
    other.step()
    return other.state[w]


def random_states() -> dict:
    """States of the global random generators: torch's on the CPU and on this rank's GPU, NumPy's, Python's."""
    numpy: Any = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(), "python": random.getstate(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": [numpy[0], torch.from_numpy(numpy[1].astype(np.int64)), *numpy[2:]],
    }  # fmt: skip


def set_random_states(states: dict) -> None:
    """Back to what ``random_states`` returned; a GPU where there was none keeps its own state."""
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])
    name, words, *rest = states["numpy"]
    np.random.set_state((name, words.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    random.setstate(states["python"])


# Files


def save(checkpoint: Checkpoint, folder: Path, check: Callable[[], None] = lambda: None) -> Path:
    """Write a checkpoint, whole or not at all, and remove all but the newest two; returns its file. All ranks call.

    ``check`` is called right before a file is begun, takes its name or is removed, and may raise.

    Raises:
        CheckpointError: no room. The checkpoints before it stay.
        CourseError: no right to write.
    """
    folder = Path(folder)
    if checkpoint.shards:
        with all_or_none():
            tensors = {"model": checkpoint.model, "optimizer": checkpoint.optimizer}
            mine = _write(tensors, folder, checkpoint.step, "shard", check).stem.rpartition("-")[2]
        checkpoint = replace(checkpoint, model={}, optimizer={}, shards=gather_objects(mine))
    if rank() > 0:
        return folder
    for digest in checkpoint.shards:
        if not (folder / f"step-{checkpoint.step:08d}-{digest}.shard").exists():
            raise CheckpointError(f"rank 0 does not see what others write to {folder}; take a folder that all share")
    file = _write({"format": _FORMAT} | vars(checkpoint), folder, checkpoint.step, "pt", check)
    check()
    for old in (file for file in named(folder)[KEEP:] if not file.is_dir()):
        old.unlink(missing_ok=True)
    steps = {file.name.split("-")[1] for file in folder.glob("step-*.pt*")}  # also of one that was passed over
    for old in (file for file in named(folder, _SHARD) if file.name.split("-")[1] not in steps):
        old.unlink(missing_ok=True)
    return file


def _write(fields: dict, folder: Path, step: int, kind: str, check: Callable[[], None]) -> Path:
    """A file that has its digest in its name."""
    packed = io.BytesIO()
    torch.save(fields, packed)
    content = packed.getbuffer()
    file = folder / f"step-{step:08d}-{_digest(content)}.{kind}"
    check()
    try:
        with paths.atomic(file) as temporary:
            temporary.write_bytes(content)
        sync(folder)
    except (OSError, CourseError) as error:
        raise CheckpointError(f"{error}; then train again with --resume") from error
    return file


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint in a folder; None if there is none. One line on stderr for each file passed over.

    Raises:
        CheckpointError: it is whole, but another version of the course wrote it.
        OSError: it, or one that may be newer, cannot be read: that is no damage.
    """
    ours = named(folder)
    for file in [*ours, *sorted(set(Path(folder).glob("[!.]*.pt")) - set(ours))]:
        try:
            return load(file)
        except DamagedError as error:
            print(f"passed over: {error}", file=sys.stderr)
    return None


def load(file: Path) -> Checkpoint:
    """Read a checkpoint, onto the CPU.

    Raises:
        DamagedError: it is truncated or changed.
        CheckpointError: it is not ours.
        OSError: it cannot be read.
    """
    named = _NAME.fullmatch(file.name)
    if not named:
        raise DamagedError(f"{file} has not the name of a checkpoint; move it elsewhere")
    content = _read(file, named[2])
    try:
        fields = {"shards": []} | _unpacked(content)  # an earlier version knew none
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        if fields["shards"]:
            names = {digest: file.with_name(f"step-{named[1]}-{digest}.shard") for digest in fields["shards"]}
            shards = {digest: _unpacked(_read(place, digest)) for digest, place in names.items()}
            _require_sound(file, shards)
            fields |= _whole([shards[digest] for digest in fields["shards"]], fields["recipe"]["tensor"])
        found = Checkpoint(**fields)
        wrong = [name for name, kind in get_type_hints(Checkpoint).items() if not isinstance(fields[name], kind)]
        numbers = [*found.scores.values(), *(found.scaler or {}).values()]
        is_list = not wrong and found.losses_N.ndim == 1 and found.losses_N.is_floating_point()
        if not is_list or found.step != int(named[1]) or len(found.losses_N) > found.step:
            raise ValueError(f"not its {(wrong or ['step or losses'])[0]}")
        _require_sound(file, [found.losses_N, found.model, found.optimizer["state"]])
        if any(map(torch.is_tensor, [*found.recipe.values(), *numbers])) or not all(map(math.isfinite, numbers)):
            raise ValueError("not its recipe, scores or scaler")
        return found
    except FileNotFoundError as error:
        raise DamagedError(f"{file} needs {error.filename}, which is not there") from error
    except (CheckpointError, OSError):  # of a shard
        raise
    except MemoryError as error:
        raise CheckpointError(f"{file} does not fit into this process's memory; give it more, then again") from error
    except Exception as error:  # torch names no common base for what a foreign file can raise
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        why = "it holds more than tensors and plain values" if isinstance(error, pickle.UnpicklingError) else why
        raise CheckpointError(f"{file} is no checkpoint of this version of the course ({why}); move it away") from error


def _read(file: Path, digest: str) -> bytes:
    """Raises: DamagedError: it holds other bytes than the digest says. OSError: it cannot be read."""
    with open(file, "rb") as stream:
        content = stream.read()
    if digest != _digest(content):
        raise DamagedError(f"{file} does not hold the bytes that were written: cut or changed")
    return content


def _unpacked(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def _whole(parts: list, n_tensor: int) -> Any:
    """What all ranks together have written: shards of a tensor, or of its pieces on so many ranks of ``tensor``."""
    if isinstance(parts[0], dict):
        names = dict.fromkeys(name for part in parts for name in part)  # not all stages of a pipeline have all
        return {name: _whole([part[name] for part in parts if name in part], n_tensor) for name in names}
    if not isinstance(parts[0], tuple):
        return parts[0]
    cut, dim, _ = parts[0]
    pieces = [torch.cat([x for *_, x in parts[n::n_tensor]], dim) for n in range(n_tensor)]
    return joined(pieces, *cut) if cut else pieces[0]


def _require_sound(file: Path, value: Any) -> None:
    if not _is_sound(value):
        why = "it may have diverged; move that file away to go on from the one before"
        raise CheckpointError(f"{file} holds NaN, infinities or tensors without memory, no run's to go on from: {why}")


def _is_sound(value: Any) -> bool:
    """Whether all tensors in it are dense, have memory for each of their numbers, and hold finite ones."""
    if not torch.is_tensor(value):
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        return all(map(_is_sound, parts))
    has_memory = value.layout == torch.strided and value.nbytes <= value.untyped_storage().nbytes()
    return has_memory and bool(torch.isfinite(value).all())


def named(folder: Path, name: re.Pattern = _NAME) -> list[Path]:
    """The files that have a checkpoint's name, newest first, whole or not. A folder that cannot be read: OSError."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        found = [file for file in Path(folder).iterdir() if name.fullmatch(file.name)]
    return sorted(found, key=lambda file: (step_of(file), file.lstat().st_mtime_ns), reverse=True)


def step_of(file: Path) -> int:
    """The number of updates in a checkpoint's name."""
    return int(file.name.split("-")[1])


def _digest(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def sync(path: Path) -> None:
    """Make what was written to a file, or the names in a folder, outlast a power failure, too."""
    with contextlib.suppress(OSError):  # some shared file systems cannot sync a folder, and need not
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
