"""Stopping a run and going on with it: when a checkpoint is due, which signals ask for one, what a resumed run keeps.

In: a run's folder and recipe. Out: the checkpoint to go on from, and a folder that holds nothing later than it.

A batch system warns a job before it takes the nodes away: Slurm with SIGTERM, or with the signal that ``--signal``
names. ``Warned`` notes either; the loop then writes a checkpoint at the end of the current update and the program ends
with the status ``Interrupted.exit_status``, so that a job script knows that it is to queue again.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from dltutorial import paths
from dltutorial.config import Recipe
from dltutorial.data.store import Split
from dltutorial.errors import CheckpointError, CourseError, Interrupted
from dltutorial.train import checkpoint
from dltutorial.train.checkpoint import FREE_KNOBS, Checkpoint
from dltutorial.train.team import ALONE, Team

FOLDER = "checkpoints"
SIGNALS = ("SIGTERM", "SIGUSR1")


class Warned:
    """Inside ``with``, a signal that asks the program to end is noted; calling the object tells whether one came.

    Signals can be caught in a program's main thread only; in another one nothing is caught.
    """

    def __init__(self) -> None:
        self._came = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Warned":
        """Catch the signals."""
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Let the signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self._came

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True


class Keeper:
    """Writes a run's checkpoints: every ``checkpoint_every`` updates, and once more when the run is asked to end.

    Of several ranks each may be asked to end; all learn of it with the update after that, and end after the same one.
    Rank 0 writes.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        asked_to_end: Callable[[], bool] = lambda: False,
        data: str = "",
        team: Team = ALONE,
    ) -> None:
        self._run, self._every, self._data, self._team = Path(run), recipe.checkpoint_every, data, team
        self._asked_to_end, self._ending = asked_to_end, False

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after this update."""
        self._ending = self._team.any(self._asked_to_end())
        return bool(self._every and step % self._every == 0) or self._ending

    def can_end_here(self) -> bool:
        """Whether the run was asked to end, and no other rank is in the midst of an update meanwhile."""
        return self._team.world_size == 1 and self._asked_to_end()

    def write(self, state: Checkpoint) -> None:
        """Write it, and end the run if that was asked for.

        Raises:
            CheckpointError: it cannot be written.
            Interrupted: it is written, and the run was asked to end.
        """
        random, *others = self._team.gather(state.random) or [state.random]
        if self._team.leads:
            checkpoint.sync(self._run / "progress.jsonl")  # no record may be younger than the checkpoint after it
            whole = dataclasses.replace(state, data=self._data, random=random, other_random=others)
            checkpoint.save(whole, self._run / FOLDER)
        self._team.wait()  # nobody ends before it is there
        if self._ending or self.can_end_here():
            raise Interrupted(f"asked to end after {state.step} updates; a checkpoint is written, go on with --resume")


def previous_recipe(run: Path) -> Recipe | None:
    """The recipe of the run in a folder; None if no run has got so far as to write one.

    Raises:
        CourseError: the folder is there and holds something else.
    """
    if (run / "recipe.json").exists():
        return Recipe.load(run / "recipe.json")
    if run.exists() and not run.is_dir():
        raise CourseError(f"{run} is a file, not a training run; choose another run name")
    if run.exists() and any(not entry.name.endswith(".partial") for entry in run.iterdir()):
        raise CourseError(f"{run} is not a training run, so it cannot be resumed; choose another run name")
    return None


def fingerprint(split: Split) -> str:
    """Differs between data sets: what the years hold, and the statistics they are normalised with."""
    digest = hashlib.blake2b(repr(tuple(split.snapshots)).encode(), digest_size=8)
    digest.update(split.means_1C11.tobytes() + split.stds_1C11.tobytes())
    return digest.hexdigest()


def begin(run: Path, recipe: Recipe, data: str = "") -> Checkpoint | None:
    """Bring a run's folder to its newest whole checkpoint, and return that; without one, to the start, and None.

    Records after the checkpoint are cut: the resumed run writes them again.

    Raises:
        CheckpointError: the run has another recipe, or other data.
        CourseError: the folder holds something else, or cannot be written.
    """
    before = previous_recipe(run)
    if before is not None:
        check_same(vars(before), recipe, run)
    found = checkpoint.newest(run / FOLDER)
    if found is None:
        print(f"{run} has no checkpoint to resume from; it starts anew", file=sys.stderr)
        _clear(run)
    else:
        check_same(found.recipe, recipe, run)
        if found.data != data:
            raise CheckpointError(f"{run} was trained on other data; give the same --data, or choose another run name")
        checkpoint.remove_after(run / FOLDER, found.step)
        cut_back(run / "progress.jsonl", found.step)
        print(f"{run} goes on after {found.step} of {recipe.steps} updates", file=sys.stderr)
    for left in [*run.glob(".*.partial"), *run.glob(f"{FOLDER}/.*.partial")]:  # half written when a kill came
        left.unlink(missing_ok=True)
    return found


def begin_together(run: Path, recipe: Recipe, data: str, team: Team) -> Checkpoint | None:
    """``begin`` on rank 0; then the other ranks read the same checkpoint, each with its own random states.

    Raises:
        CheckpointError: as ``begin``, or a rank sees another one than rank 0.
        CourseError: as ``begin``.
    """
    found = begin(run, recipe, data) if team.leads else None
    step = team.tell(found and found.step)
    if team.leads or step is None:
        return found
    found = checkpoint.newest(run / FOLDER, quiet=True)
    if found is None or found.step != step:
        raise CheckpointError(
            f"rank 0 goes on after {step} updates, but rank {team.rank} finds no such checkpoint in {run / FOLDER}; "
            "put the runs folder where all nodes see it (DLTUTORIAL_RUNS)"
        )
    return checkpoint.of_rank(found, team.rank)


def check_same(before: dict, recipe: Recipe, run: Path) -> None:
    """A run can go on only as what it was.

    Raises:
        CheckpointError: a knob differs that decides weights or data.
    """
    before, now = {**vars(Recipe()), **before}, vars(recipe)  # a knob younger than the run had its default
    differ = [name for name in now if name not in FREE_KNOBS and before.get(name) != now[name]]
    if differ:
        said = ", ".join(f"{name}={before.get(name)!r} (now {now[name]!r})" for name in differ)
        raise CheckpointError(f"{run} was trained with {said}; resume with the same, or choose another run name")


def cut_back(file: Path, step: int) -> None:
    """Remove from a run's records those after ``step``, and a last line that a kill left half written.

    Raises:
        CourseError: it cannot be written.
    """
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept += [line] if json.loads(line)["step"] <= step else []
    paths.write_text(file, "".join(f"{line}\n" for line in kept))


def _clear(run: Path) -> None:
    """Remove what an earlier life of a run made, but not its recipe: a kill meanwhile leaves it known as a run."""
    checkpoint.remove_after(run / FOLDER, -1)
    for name in ("progress.jsonl", "weights.pt"):
        (run / name).unlink(missing_ok=True)
    for name in ("tensorboard", "wandb"):
        shutil.rmtree(run / name, ignore_errors=True)
