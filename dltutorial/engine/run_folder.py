"""A run's folder: how it begins, what is written while the run goes on, what a resumed run keeps.

``recipe.json`` every knob · ``progress.jsonl`` what the loop yielded · ``tensorboard/``, ``wandb/`` the trackers ·
``checkpoints/`` what it can go on from · ``weights.pt`` the model · ``status.json`` running, finished, interrupted or
failed, which data, and the final scores. Of several ranks only rank 0 writes, while it owns the folder (``run_lock``).
"""

import contextlib
import dataclasses
import glob
import itertools
import json
import os
import re
import reprlib
import secrets
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from tqdm.auto import tqdm

from dltutorial import paths
from dltutorial.engine import checkpoint, run_lock
from dltutorial.engine.checkpoint import Checkpoint
from dltutorial.engine.loop import Progress
from dltutorial.engine.recipe import Recipe, read_knobs
from dltutorial.errors import CheckpointError, CourseError, Interrupted, RecipeError
from dltutorial.record import track

CHECKPOINTS = "checkpoints"
# What a kill leaves half written, and all that a run writes, by the path in its folder: nothing else is ever removed
# with a run. W&B writes media and code only where it is told to, and no run tells it.
_PARTIAL = re.compile(rf"({CHECKPOINTS}/)?\.[^/]+\.[0-9a-f]{{8}}\.partial")
_LOG = r"debug(-(internal|core|cli(\.[^/]+)?))?\.log"
_WANDB = r"(config|conda-environment)\.yaml|output\.log|requirements\.txt|wandb-(metadata|summary)\.json"
_OURS = re.compile(
    rf"(recipe|status)\.json|progress\.jsonl|weights\.pt|tensorboard(/events\.out\.tfevents\.[^/]+)?"
    rf"|{CHECKPOINTS}(/step-\d{{8,}}-[0-9a-f]{{16}}\.(pt(\.damaged)?|shard))?|{_PARTIAL.pattern}"
    rf"|wandb(/(latest-run|{_LOG}|(offline-)?run-\d{{8}}_\d{{6}}-(?P<id>[^/]+)"
    rf"(/(run-(?P=id)\.wandb(\.sync(ed|state))?|logs(/{_LOG})?|tmp(/code)?|files(/({_WANDB}))?))?))?"
)
# As long as each other: on a full disk the second can still be written over the first.
RUNNING, FAILED = '{"status": "running"}\n', '{"status": "failed" }\n'
# Knobs that a resumed run may change: they decide neither the weights nor the data. (All others do, ``steps`` too: the
# learning rate's schedule is stretched over them. Loaders agree on the batches only to the last bit but one.)
FREE_KNOBS = frozenset({"preset", "device", "workers", "ddp", "log_every", "eval_every", "checkpoint_every", "track",
                        "accumulate", "shard", "tensor", "context", "pipeline"})  # fmt: skip


def run_status(folder: Path) -> str:
    """``finished``, ``interrupted``, ``failed``, ``running``, ``killed`` while running, ``missing`` or ``damaged``."""
    said = _said(folder)["status"]
    return "killed" if said == "running" and not run_lock.is_owned(folder) else said


def _said(folder: Path) -> dict:
    """What ``status.json`` holds. OSError: it cannot be read, or is no regular file."""
    try:
        said = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        is_sound = all(isinstance(said.get(name, {}), dict) for name in ("recipe", "scores"))
        is_sound &= said["status"] in ("finished", "interrupted", "failed", "running")
        return said if is_sound else {"status": "damaged"}
    except (FileNotFoundError, NotADirectoryError):
        return {"status": "missing"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"status": "damaged"}


def to_go_on_from(folder: Path, recipe: Recipe, data_id: str, overwrite: bool, resume: bool) -> Checkpoint | None:
    """The checkpoint from which a run goes on in this folder; None if it begins. Nothing is changed.

    Raises:
        CheckpointError: the run to resume has another recipe, or other data; its checkpoints cannot be read.
        CourseError: the folder is taken by something else.
    """
    run_lock.refuse_links(folder)
    before = previous_recipe(folder, overwrite, resume)
    begun = before is not None or (resume and folder.exists())
    if not overwrite and not begun and (aside := _aside(folder)).is_dir():
        what = "it may be a run, and who was to overwrite it was killed"
        raise CourseError(f"{aside} is in the way; look what it holds ({what}): --overwrite it, or rename it")
    if before is not None:
        check_same(vars(before), recipe, folder)
    with _reading(folder / CHECKPOINTS):
        found = checkpoint.newest(folder / CHECKPOINTS) if resume else None
    if found is not None:
        check_same(found.recipe, recipe, folder, same_data=found.data_id == data_id)
    return found


@contextlib.contextmanager
def _reading(place: Path) -> Iterator[None]:
    """What cannot be read today may be whole tomorrow: CheckpointError, before anything is changed."""
    try:
        yield
    except OSError as error:
        where = error.filename or place
        raise CheckpointError(f"cannot read {where}: {error.strerror}; nothing was changed: mend that first") from error


@contextlib.contextmanager
def begin(folder: Path, recipe: Recipe, found: Checkpoint | None, resume: bool) -> Iterator[None]:
    """Make the folder of a new run, or bring that of an older one back to a checkpoint; without one it starts anew.

    Records after the checkpoint are cut: the run writes them again. Without one they are set aside, and the weights.
    A run that is overwritten is moved aside, under another name in one go, so that a kill never leaves half a run under
    its own. It is back if what starts in ``with`` fails, and stays aside until ``let_go`` is called: when there is
    something of the new one to go on from. CourseError: the folder cannot be written.
    """
    real, aside = folder.resolve(), _aside(folder)
    for left in real.parent.glob(f".{glob.escape(real.name)}.removed-*"):  # by a kill
        if re.fullmatch(r"[0-9a-f]{8}", left.name[-8:]):
            _remove(left)
    if resume:
        _go_back(folder, recipe, found)
    else:
        _replace(real, aside)
    try:
        recipe.save(folder / "recipe.json")
        paths.write_text(folder / "status.json", RUNNING)
        yield
    except BaseException:
        if not resume and aside.exists():
            failed = _out_of_the_way(real, real)
            aside.rename(real)
            _remove(failed)
        raise


def _aside(folder: Path) -> Path:
    """Where the run that is overwritten in this folder stays until the new one has a checkpoint or its weights."""
    return (real := folder.resolve()).with_name(f".{real.name}.overwritten")


def tell_kept(folder: Path) -> None:
    """At the end of a run that has replaced none: where the one is that it was to overwrite."""
    if (aside := _aside(folder)).is_dir():
        print(f"the run that was to be overwritten is kept, in {aside}; --overwrite it, or move it", file=sys.stderr)


def let_go(folder: Path) -> None:
    """Remove the run that was overwritten here, if there is one still."""
    with contextlib.suppress(OSError):  # what may not be changed any more is told of at the end
        if (aside := _aside(folder)).is_dir() and _is_run(aside) and not _foreign(aside):
            _remove(_out_of_the_way(aside, folder.resolve()))


def _out_of_the_way(place: Path, real: Path) -> Path:
    """A name for what is about to be removed, so that what is called by another one is whole."""
    return place.rename(real.with_name(f".{real.name}.removed-{secrets.token_hex(4)}"))


def _remove(folder: Path) -> None:
    """Remove of a run's folder what runs write, file by file. Whatever else is there by now stays; a line says where.

    So does what cannot be removed, such as NFS's own name for an open file. No link is followed.
    """
    with contextlib.suppress(OSError):
        for file in reversed([] if folder.is_symlink() else [*_below(folder)]):
            with contextlib.suppress(OSError):
                if _OURS.fullmatch(file.relative_to(folder).as_posix()):
                    file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        folder.rmdir()
    if os.path.lexists(folder):
        print(f"{folder} is left of a run: look what it holds that no run writes, then move it away", file=sys.stderr)


def _foreign(folder: Path) -> list[str]:
    """What a run's folder holds that no run writes."""
    names = (file.relative_to(folder).as_posix() for file in _below(folder))
    return [name for name in names if not _OURS.fullmatch(name)]


def _replace(real: Path, aside: Path) -> None:
    if os.path.lexists(aside):  # the older run is there still, and here no more than the beginnings of another one
        begun = (real / "weights.pt").exists() or checkpoint.named(real / CHECKPOINTS)
        if (is_run := not aside.is_symlink() and aside.is_dir() and _is_run(aside)) and begun:
            what = f"{real} has begun to replace the run in {aside}"
            raise CourseError(f"{what}: --resume it; if it is finished, move the older one away")
        if not is_run:
            raise CourseError(f"{aside} is in the way; look what it holds, then rename it")
        _remove(_out_of_the_way(real, real)) if real.exists() else None
    elif real.exists() and any(real.iterdir()):  # else it is taken as it is: who made it has given it its rights
        real.rename(aside)
    try:
        real.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        aside.rename(real) if aside.exists() else None
        raise CourseError(f"cannot make {real}: {error.strerror}; make room, then again") from error


def previous_recipe(folder: Path, overwrite: bool = False, resume: bool = False) -> Recipe | None:
    """The recipe of the run to resume, if it has got so far as to write one. A new run takes a new folder.

    Raises:
        CourseError: the folder holds something else; or a run, which was not to be overwritten.
    """
    is_loop = Path(os.path.realpath(folder)).is_symlink()
    if is_loop or (folder.exists() and not folder.is_dir()):
        what = "a link that leads to itself" if is_loop else "a file"
        raise CourseError(f"{folder} is {what}, not a training run; choose another run name")
    with _reading(folder):
        if all(_PARTIAL.fullmatch(file.relative_to(folder).as_posix()) for file in _below(folder)):
            return None
        before = Recipe.load(folder / "recipe.json") if resume and (folder / "recipe.json").exists() else None
        if not overwrite and not (folder / "recipe.json").exists() and checkpoint.named(folder / CHECKPOINTS):
            raise CourseError(f"{folder} has lost its recipe.json, not its checkpoints: put that back, or rename it")
        if (resume and before is None) or not _is_run(folder):
            raise CourseError(f"{folder} is not a training run, so it is left alone; choose another run name")
    if not overwrite and not resume:
        raise CourseError(f"{folder} holds a run already; choose another run name, --overwrite it, or --resume it")
    if overwrite and (others := _foreign(folder)):
        raise CourseError(f"{folder} holds {others[0]}, which no run removes: move it away, or choose another run name")
    return before


def _below(folder: Path) -> Iterator[Path]:
    """All that is in a folder, at any depth; no link is followed. OSError: it cannot be listed."""
    for file in sorted(folder.iterdir()) if folder.exists() else ():
        yield file
        if file.is_dir() and not file.is_symlink():
            yield from _below(file)


def _is_run(folder: Path) -> bool:
    """Whether a folder with something in it is a run's: by its recipe or, without a whole one, by its status."""
    with contextlib.suppress(RecipeError):
        return {"preset", "seed", "steps"} <= read_knobs(folder / "recipe.json").keys()
    return run_status(folder) not in ("missing", "damaged")


def check_same(before: Mapping, recipe: Recipe, folder: Path, same_data: bool = True) -> None:
    """A run can go on only as what it was.

    Raises:
        CheckpointError: a knob differs that decides weights or data; or the data do.
    """
    if not same_data:
        raise CheckpointError(f"{folder} was trained on other data; give the same --data, or choose another run name")
    before, now = {**vars(Recipe()), **before}, vars(recipe)  # a knob younger than the run had its default
    differ = [name for name in _about(recipe, "")["recipe"] if before[name] != now[name]]
    if differ:
        said = ", ".join(f"{name}={reprlib.repr(before[name])} (now {now[name]!r})" for name in differ)
        raise CheckpointError(f"{folder} was trained with {said}; resume with the same, or choose another run name")


def _go_back(folder: Path, recipe: Recipe, found: Checkpoint | None) -> None:
    if found is None:
        # The recipe stays: a kill meanwhile leaves the folder known as a run.
        made = [file for name in ("progress.jsonl", "weights.pt") if os.path.lexists(file := folder / name)]
        kept = f"; what it had made is now {' and '.join(_set_aside(file).name for file in made)}" if made else ""
        print(f"{folder} has no checkpoint to resume from; it starts anew{kept}", file=sys.stderr)
    else:
        last, every = cut_back(folder / "progress.jsonl", found.step), found.recipe.get("log_every", found.step + 1)
        lacks = f", but its records end with update {last}" if last <= found.step - every else ""
        print(f"{folder} goes on after {found.step} of {recipe.steps} updates{lacks}", file=sys.stderr)
    for file in checkpoint.named(folder / CHECKPOINTS):  # read wrong today, it may be whole tomorrow
        if found is None or checkpoint.step_of(file) > found.step:
            file.rename(f"{file}.damaged")
    _clear_partial(folder)


def _set_aside(file: Path) -> Path:
    """Rename a file to ``weights.mine1.pt``, or to the next number that is free."""
    for number in itertools.count(1):
        other = file.with_suffix(f".mine{number}{file.suffix}")
        if not os.path.lexists(other):
            break
    return file.rename(other)


def _clear_partial(folder: Path) -> None:
    run_lock.refuse_links(folder)
    for left in [*folder.glob(".*.partial"), *folder.glob(f"{CHECKPOINTS}/.*.partial")]:  # half written at a kill
        if _PARTIAL.fullmatch(left.relative_to(folder).as_posix()):
            left.unlink(missing_ok=True)


def cut_back(file: Path, step: int) -> int:
    """Remove from a run's records those after ``step``, and a last line that a kill left half written.

    Returns the update of the last record that is left; 0: none is.
    """
    kept, last = "", 0
    with _reading(file), contextlib.suppress(FileNotFoundError), open(file, "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if (at := json.loads(line)["step"]) <= step:
                    kept, last = f"{kept}{line.decode().rstrip()}\n", at
    paths.write_text(file, kept)
    return last


@contextlib.contextmanager
def run_log(folder: Path, recipe: Recipe, data_id: str, begun: Checkpoint | None, progress: bool) -> Iterator[Callable]:
    """Inside ``with``, what it gives writes a record: for the bar, the trackers, ``progress.jsonl``. Then the status.

    Raises:
        CourseError: a tracker cannot start, a record cannot be written, or the folder has another owner.
    """
    run_lock.check(folder)
    file, status, done = folder / "progress.jsonl", folder / "status.json", begun.step if begun else 0
    state: dict = {"status": "failed", **_about(recipe, data_id), "scores": begun.scores if begun else {}}

    def write(seen: Progress) -> None:
        run_lock.check(folder)
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

    def end() -> None:
        run_lock.check(folder)
        try:
            paths.write_text(status, json.dumps(state) + "\n")
        except CourseError:
            with contextlib.suppress(OSError), open(status, "r+b") as there:
                there.write(FAILED.encode())
            raise

    with contextlib.ExitStack() as ending:
        ending.callback(end)
        tracker = track.Tracker(recipe.track, folder, dataclasses.asdict(recipe), done + 1)
        ending.callback(tracker.close)
        bar = tqdm(total=recipe.steps, initial=done, desc="training", unit="step", disable=not progress)
        ending.enter_context(bar)
        try:
            yield write
            state["status"] = "finished"
        except (KeyboardInterrupt, GeneratorExit, Interrupted):
            state["status"] = "interrupted"
            raise


def _about(recipe: Recipe, data_id: str) -> dict:
    """What decides a run's weights and scores."""
    free = FREE_KNOBS - {"accumulate" if recipe.task == "survey" else ""}  # there each part has a loss of its own
    return {"recipe": {k: v for k, v in vars(recipe).items() if k not in free}, "data": data_id}


def save_weights(weights: Mapping, folder: Path) -> None:
    """Write a model's ``state_dict`` into ``weights.pt``, whole or not at all. CourseError: it cannot be written."""
    run_lock.check(folder)
    file = folder / "weights.pt"
    try:
        with paths.atomic(file) as temporary, open(temporary, "wb") as out:
            torch.save(weights, out)  # into a named file it would write that name, too
    except (OSError, RuntimeError) as error:  # torch's ways to say that the disk is full
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CourseError(f"cannot write {file}: {why}; make room, then train again with --resume") from error


def scores_of(folder: Path) -> dict:
    """The final scores of a finished run."""
    return dict(_said(folder).get("scores", {}))


def is_finished(folder: Path, recipe: Recipe, data_id: str, mine: bool = False) -> bool:
    """Whether a run has nothing left to do. If it has lost its weights a line says so: they can be made again.

    ``mine``: this process owns the folder.

    Raises:
        CheckpointError: the run has another recipe, or other data; its status or weights cannot be read.
    """
    weights, damage = folder / "weights.pt", (FileNotFoundError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError)
    with _reading(folder):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(weights, "rb"):
            pass  # a pipe is told now, not when they are to be written
        said, last = _said(folder), _last_record(folder)
        if late := said["status"] != "finished":  # a kill, or a full disk, came between the weights and the status
            if (run_lock.is_owned(folder) and not mine) or last.get("step") != recipe.steps:
                return False
            said = {"status": "finished", **_about(recipe, data_id), "scores": last.get("scores", {})}
        same_data = said.get("data", data_id) == data_id  # a run of an earlier version has not told
        now = vars(Recipe.load(folder / "recipe.json")) | ({} if late else said.get("recipe", {}))
        check_same(now, recipe, folder, same_data)  # whatever it was edited to
        with contextlib.suppress(*damage), open(weights, "rb") as file, zipfile.ZipFile(file) as parts:
            if parts.testzip() is None:
                if late:
                    with contextlib.nullcontext() if mine else run_lock.owned(folder):
                        _clear_partial(folder)
                        paths.write_text(folder / "status.json", json.dumps(said) + "\n")
                return True
    print(f"{folder} is finished, but its weights.pt is missing or damaged; it is made again", file=sys.stderr)
    return False


def _last_record(folder: Path) -> dict:
    """Of ``progress.jsonl``; nothing where there is none, or a kill has cut it."""
    with contextlib.suppress(OSError, ValueError, IndexError, TypeError):
        return {} | json.loads((folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {}
