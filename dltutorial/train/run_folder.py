"""A run's folder: how it begins, what is written while the run goes on, what a resumed run keeps.

``recipe.json`` every knob · ``progress.jsonl`` what the loop yielded · ``tensorboard/``, ``wandb/`` the trackers ·
``checkpoints/`` what it can go on from · ``weights.pt`` the model · ``status.json`` running, finished, interrupted or
failed, and the final scores. Of several ranks only rank 0 writes.
"""

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import nn
from tqdm.auto import tqdm

from dltutorial import paths
from dltutorial.config import Recipe
from dltutorial.errors import CheckpointError, CourseError, Interrupted
from dltutorial.record import track
from dltutorial.train import checkpoint
from dltutorial.train.checkpoint import Checkpoint
from dltutorial.train.loop import Progress

CHECKPOINTS = "checkpoints"
# Knobs that a resumed run may change: they decide neither the weights nor the data. (All others do, ``steps`` too: the
# learning rate's schedule is stretched over them. Loaders agree on the batches only to the last bit but one.)
FREE_KNOBS = frozenset({"preset", "device", "workers", "ddp", "log_every", "eval_every", "checkpoint_every", "track"})


def run_status(folder: Path) -> str:
    """``finished``, ``interrupted``, ``failed``, ``running`` (or killed while running), or ``missing``."""
    try:
        return json.loads((folder / "status.json").read_text())["status"]
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (ValueError, KeyError, TypeError):
        return "damaged"


def begin(folder: Path, recipe: Recipe, data_id: str, overwrite: bool, resume: bool) -> Checkpoint | None:
    """Make the folder of a new run, or bring that of an older one to its newest whole checkpoint, and return that.

    Without a checkpoint a resumed run starts anew. Records after the checkpoint are cut: the run writes them again.

    Raises:
        CheckpointError: the run to resume has another recipe, or other data.
        CourseError: the folder is taken by something else, or cannot be written.
    """
    before, found = previous_recipe(folder, overwrite, resume), None
    if resume:
        if before is not None:
            check_same(vars(before), recipe, folder)
        found = _go_back(folder, recipe, data_id)
    elif folder.exists():
        shutil.rmtree(folder)
    recipe.save(folder / "recipe.json")
    paths.write_text(folder / "status.json", json.dumps({"status": "running"}) + "\n")
    return found


def previous_recipe(folder: Path, overwrite: bool = False, resume: bool = False) -> Recipe | None:
    """The recipe of the run to resume, if it has got so far as to write one. A new run takes a new folder.

    Raises:
        CourseError: the folder holds something else; or a run, which was not to be overwritten.
    """
    if folder.exists() and not folder.is_dir():
        raise CourseError(f"{folder} is a file, not a training run; choose another run name")
    if not folder.exists() or all(entry.name.endswith(".partial") for entry in folder.iterdir()):
        return None
    if not (folder / "recipe.json").exists() and (resume or run_status(folder) == "missing"):
        raise CourseError(f"{folder} is not a training run, so it is left alone; choose another run name")
    if not overwrite and not resume:
        raise CourseError(f"{folder} holds a run already; choose another run name, --overwrite it, or --resume it")
    return Recipe.load(folder / "recipe.json") if resume else None


def check_same(before: Mapping, recipe: Recipe, folder: Path) -> None:
    """A run can go on only as what it was.

    Raises:
        CheckpointError: a knob differs that decides weights or data.
    """
    before, now = {**vars(Recipe()), **before}, vars(recipe)  # a knob younger than the run had its default
    differ = [name for name in now if name not in FREE_KNOBS and before[name] != now[name]]
    if differ:
        said = ", ".join(f"{name}={before[name]!r} (now {now[name]!r})" for name in differ)
        raise CheckpointError(f"{folder} was trained with {said}; resume with the same, or choose another run name")


def _go_back(folder: Path, recipe: Recipe, data_id: str) -> Checkpoint | None:
    found = checkpoint.newest(folder / CHECKPOINTS)
    if found is None:
        print(f"{folder} has no checkpoint to resume from; it starts anew", file=sys.stderr)
        # The recipe stays: a kill meanwhile leaves the folder known as a run.
        for name in ("progress.jsonl", "weights.pt"):
            (folder / name).unlink(missing_ok=True)
        for name in ("tensorboard", "wandb"):
            shutil.rmtree(folder / name, ignore_errors=True)
    else:
        check_same(found.recipe, recipe, folder)
        if found.data_id != data_id:
            raise CheckpointError(
                f"{folder} was trained on other data; give the same --data, or choose another run name"
            )
        cut_back(folder / "progress.jsonl", found.step)
        print(f"{folder} goes on after {found.step} of {recipe.steps} updates", file=sys.stderr)
    for file in checkpoint.named(folder / CHECKPOINTS):
        if found is None or checkpoint.step_of(file) > found.step:
            file.unlink(missing_ok=True)
    for left in [*folder.glob(".*.partial"), *folder.glob(f"{CHECKPOINTS}/.*.partial")]:  # half written at a kill
        left.unlink(missing_ok=True)
    return found


def cut_back(file: Path, step: int) -> None:
    """Remove from a run's records those after ``step``, and a last line that a kill left half written."""
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept += [line] if json.loads(line)["step"] <= step else []
    paths.write_text(file, "".join(f"{line}\n" for line in kept))


@contextlib.contextmanager
def run_log(folder: Path, recipe: Recipe, begun: Checkpoint | None, progress: bool) -> Iterator[Callable]:
    """Inside ``with``, what it gives writes a record: for the bar, the trackers, ``progress.jsonl``. Then the status.

    Raises:
        CourseError: a tracker cannot start, or a record cannot be written; the run has then failed.
    """
    file, done = folder / "progress.jsonl", begun.step if begun else 0
    state: dict = {"status": "failed", "scores": begun.scores if begun else {}}

    def write(seen: Progress) -> None:
        try:
            with open(file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(dataclasses.asdict(seen)) + "\n")
        except OSError as error:
            raise CourseError(f"cannot write {file}: {error.strerror}; make room, then train again") from error
        scalars = {"train/loss": seen.loss, "train/learning_rate": seen.learning_rate, **seen.scores}
        tracker.log(seen.step, scalars | {"train/samples_per_s": seen.samples_per_s})
        bar.set_postfix(loss=f"{seen.loss:.4f}", refresh=False)
        bar.update(seen.step - bar.n)
        state["scores"] = seen.scores or state["scores"]

    with contextlib.ExitStack() as ending:
        ending.callback(lambda: paths.write_text(folder / "status.json", json.dumps(state) + "\n"))
        tracker = track.Tracker(recipe.track, folder, dataclasses.asdict(recipe), done)
        ending.callback(tracker.close)
        bar = tqdm(total=recipe.steps, initial=done, desc="training", unit="step", disable=not progress)
        ending.enter_context(bar)
        try:
            yield write
            state["status"] = "finished"
        except (KeyboardInterrupt, GeneratorExit, Interrupted):
            state["status"] = "interrupted"
            raise


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write ``weights.pt``, whole or not at all.

    Raises:
        CourseError: it cannot be written.
    """
    file = folder / "weights.pt"
    try:
        with paths.atomic(file) as temporary:
            torch.save(model.state_dict(), temporary)
    except (OSError, RuntimeError) as error:  # torch's ways to say that the disk is full
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CourseError(f"cannot write {file}: {why}; make room, then train again") from error
