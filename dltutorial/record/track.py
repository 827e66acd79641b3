"""Experiment tracking: TensorBoard event files and W&B, written alike.

In: named scalars at a step. Out: files under a run's folder. W&B stays offline unless ``WANDB_MODE`` says otherwise;
offline it needs no key, no network and no answer to a prompt.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dltutorial.errors import CourseError, warn

MINE = ".dltutorial"  # so end the names of its event files: those of others are no run's to remove


class Tracker:
    """Writes scalars to the named kinds of trackers (``tensorboard``, ``wandb``) in a run's folder.

    A TensorBoard run that goes on after ``done`` steps takes back what an earlier file holds of later steps. W&B cannot
    do that offline: there, each part of a resumed run is a run of its own.

    Raises:
        CourseError: W&B has no key, no network, or a mode that does not exist.
    """

    def __init__(self, kinds: Collection[str], folder: Path, config: Mapping[str, Any], done: int = 0):
        self._folder, self._board = folder, None
        self._wandb = _wandb_run(folder, config) if "wandb" in kinds else None
        if "tensorboard" in kinds:
            from torch.utils.tensorboard import SummaryWriter

            self._others, threading.excepthook = threading.excepthook, self._told_here
            with _events(folder):
                self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1, filename_suffix=MINE)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars that belong to one update. CourseError: TensorBoard cannot; W&B that cannot is given up."""
        if self._board:
            with _events(self._folder):
                for name, value in scalars.items():
                    self._board.add_scalar(name, value, step)
        if self._wandb and not _done(self._folder, partial(self._wandb.log, dict(scalars), step=step)):
            self._wandb = None

    def close(self) -> None:
        """Flush everything to disk; the tracker cannot be used afterwards. Fails as ``log`` does."""
        try:
            if self._board:
                with _events(self._folder):
                    self._board.close()
                threading.excepthook = self._others  # else its thread may yet fail
        finally:
            if self._wandb:
                _done(self._folder, self._wandb.finish)

    def _told_here(self, about: threading.ExceptHookArgs) -> None:
        """Print nothing where TensorBoard's own thread fails: its next call here raises that error."""
        if type(about.thread).__name__ != "_AsyncWriterThread":
            self._others(about)


def write_table(folder: Path, columns: list, rows: list[list], file: Path) -> None:
    """A W&B run here of its own: rows as the table ``trials``, a file as an artifact. CourseError: as ``Tracker``."""
    import wandb

    run = _wandb_run(folder, {})
    run.log({"trials": wandb.Table(columns=columns, data=rows)})
    artifact = wandb.Artifact(folder.parent.name, type="study")
    artifact.add_file(str(file))
    run.log_artifact(artifact)
    run.finish()


@contextlib.contextmanager
def _events(folder: Path) -> Iterator[None]:
    """What TensorBoard cannot write, in one line."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise CourseError(f"TensorBoard cannot write to {str(folder)!r}; choose a name in UTF-8") from error
    except FileNotFoundError as error:
        raise CourseError(f"{folder} was removed or moved away while the run wrote there; train again") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise CourseError(f"{folder / 'tensorboard'} is no folder; move it away, then --resume") from error
    except OSError as error:
        why = error.strerror or error
        raise CourseError(f"cannot write TensorBoard's events in {folder}: {why}; make room, then --resume") from error


def _done(folder: Path, call: Callable[[], object]) -> bool:
    """Whether W&B did it. Else, as where its process is gone, a warning says so, and nobody asks it any more."""
    import wandb

    try:
        call()
        return True
    except Exception as error:
        told = f"W&B has failed ({type(error).__name__}): its record of {folder.name} ends here"
        warn(f"{told}; the course's own files have everything")
    with contextlib.suppress(Exception, SystemExit):
        wandb.teardown()  # else its end at this program's end is a traceback
    return False


def _wandb_run(folder: Path, config: Mapping[str, Any]) -> Any:
    """A W&B run into which neither the host's name nor its load, code, Git state or console output goes."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    off = ("disable_code", "disable_git", "x_disable_stats", "x_disable_meta", "x_disable_machine_info")
    wanted: dict[str, Any] = dict.fromkeys(off, True) | {"silent": True, "console": "off", "host": ""}
    settings = wandb.Settings(**{k: v for k, v in wanted.items() if k in wandb.Settings.model_fields})
    where: dict[str, Any] = {"project": "dltutorial", "name": folder.name, "dir": str(folder), "mode": mode}
    where["group"] = os.environ.get("WANDB_RUN_GROUP")  # W&B itself reads it at its first run in a process only
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return wandb.init(config=dict(config), settings=settings, **where)
    except (wandb.Error, ValueError) as error:  # a mode that does not exist is a ValueError
        why = f"W&B could not start in mode {mode!r}: {str(error).partition(chr(10))[0] or type(error).__name__}"
        raise CourseError(f"{why}; run `wandb login`, or unset WANDB_MODE to stay offline") from None
