"""Experiment tracking behind one small interface: TensorBoard event files and W&B, written and read back.

In: named scalars at a step. Out: files under a run's folder, and the same scalars again as
``{name: [(step, value), …]}``. W&B stays offline unless ``WANDB_MODE`` asks for something else; offline it needs no
key, no network and no answer to a prompt.
"""

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from dltutorial.errors import CourseError

Scalars = dict[str, list[tuple[int, float]]]


class Tracker(Protocol):
    """What every tracker can do."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars that belong to one update."""

    def close(self) -> None:
        """Flush everything to disk; the tracker cannot be used afterwards."""


class TensorBoard:
    """Writes an event file; ``tensorboard --logdir`` shows it.

    A run that goes on after ``done`` steps adds a file, which takes back what an earlier one holds of later steps.
    """

    def __init__(self, folder: Path, done: int = 0):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=done + 1 if done else None)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars that belong to one update."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandB:
    """Writes a W&B run, offline unless ``WANDB_MODE`` says otherwise; ``wandb sync`` uploads it later.

    Neither the host's name nor its load, code, Git state or console output goes into the run.

    Raises:
        CourseError: an online run was asked for and W&B has no key or no network, or a mode that does not exist.
    """

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any]):
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        quiet = {
            "silent": True,
            "console": "off",
            "disable_code": True,
            "disable_git": True,
            "x_disable_stats": True,
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "host": "",
        }
        known = set(wandb.Settings.model_fields)
        settings = wandb.Settings(**{key: value for key, value in quiet.items() if key in known})
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project="dltutorial", name=name, dir=str(folder), config=dict(config), mode=mode, settings=settings
            )
        except (wandb.Error, ValueError) as error:  # a mode that does not exist is a ValueError
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CourseError(
                f"W&B could not start in mode {mode!r}: {first_line}; run `wandb login`, "
                "or unset WANDB_MODE to stay offline"
            ) from None

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars that belong to one update."""
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Several:
    """Hands every call to several trackers, in order."""

    def __init__(self, trackers: Iterable[Tracker]):
        self._trackers = tuple(trackers)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars that belong to one update."""
        for tracker in self._trackers:
            tracker.log(step, scalars)

    def close(self) -> None:
        """Close all, also when one of them fails."""
        with contextlib.ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.close)


def tracker(kinds: Iterable[str], folder: Path, config: Mapping[str, Any], done: int = 0) -> Several:
    """Open the named trackers (``tensorboard``, ``wandb``) on a run's folder; ``done`` steps are logged already.

    W&B cannot take back steps offline: there, each part of a resumed run is a run of its own.

    Raises:
        CourseError: a kind that does not exist.
    """
    opened: list[Tracker] = []
    for kind in kinds:
        if kind == "tensorboard":
            opened.append(TensorBoard(folder, done))
        elif kind == "wandb":
            opened.append(WandB(folder, folder.name, config))
        else:
            raise CourseError(f"no tracker {kind!r}; choose tensorboard, wandb or both")
    return Several(opened)


def read_tensorboard(folder: Path) -> Scalars:
    """Every scalar in the event files of a run's folder.

    Raises:
        CourseError: no event file there.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not any((folder / "tensorboard").glob("events.out.tfevents.*")):
        raise CourseError(f"no TensorBoard events in {folder}; train with track=('tensorboard',) first")
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def read_wandb(folder: Path) -> Scalars:
    """Every number logged to the newest offline W&B run in a run's folder.

    Raises:
        CourseError: no offline run there.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise CourseError(f"no offline W&B run in {folder}; train with track=('wandb',) first")
    scalars: Scalars = {}
    for payload in _log_records(files[-1].read_bytes()):
        record = Record.FromString(payload)
        if record.WhichOneof("record_type") != "history":
            continue
        for item in record.history.item:
            name = item.key or "/".join(item.nested_key)
            with contextlib.suppress(ValueError):
                if not name.startswith("_"):
                    scalars.setdefault(name, []).append((record.history.step.num, float(item.value_json)))
    return scalars


def _log_records(raw: bytes) -> Iterator[bytes]:
    """Payloads of W&B's file: LevelDB's log format behind a 7-byte head, so the first block is 7 bytes short.

    Blocks of 32 KiB hold fragments of crc (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last);
    what is left of a block under 7 bytes is padding. github.com/google/leveldb, doc/log_format.md.
    """
    block_bytes, head_bytes = 32768, 7
    position, parts = head_bytes, []
    while position + head_bytes <= len(raw):
        left = block_bytes - position % block_bytes
        if left < head_bytes:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", raw, position + 4)
        if kind == 0:  # zeros up to the end of the block
            position += left
            continue
        fragment = raw[position + head_bytes : position + head_bytes + length]
        if len(fragment) < length:  # the writer was killed in the middle of this one
            return
        position += head_bytes + length
        parts = [fragment] if kind in (1, 2) else [*parts, fragment]
        if kind in (1, 4):
            yield b"".join(parts)
