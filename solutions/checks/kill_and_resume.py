"""Checks of chapter 10's exercise: checkpoints that survive a kill at any moment.

The answer trains a ``TinyRun`` in a process of its own (see ``kill_harness``). This process really dies: by SIGKILL
during an update, by SIGKILL before a file gets its final name, or while it writes a file. Then the answer is called
again on the same folder. The checks compare the state with which it continues, and its losses, with those of a run that
was never killed.

Source: https://docs.python.org/3/library/os.html#os.fsync
"""

import functools
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.kill_harness import (
    PARTS,
    Kill,
    Process,
    read_log,
    train_until_killed,
    train_without_kill,
)
from dltutorial.course.checks.rank_harness import RankError, run_on_ranks
from dltutorial.course.checks.tiny_run import TinyRun

_EVERY = 3  # updates between two checkpoints
_STEPS = TinyRun.steps
_NO_UPDATE: tuple[int, dict[str, str]] = (0, {})
_FORGOTTEN = {
    "model": "The weights are not those of the checkpoint. Call model.load_state_dict.",
    "optimizer": "The optimizer state of AdamW starts from zero again. Save and load the optimizer's state_dict, too.",
    "scheduler": "The learning rate continues at another update. Save and load the scheduler's state_dict.",
    "order": "The data continue at another batch, so samples come twice or never. Save and load the order's state.",
    "random": "Dropout draws other random numbers. Save torch.get_rng_state(), and set this state when you load.",
}
_BEFORE = (
    "A kill during the writing must leave the previous checkpoint complete. Write to a temporary name, then rename."
)
_UNDER_ITS_NAME = ("a file that gets its name when it is complete", "a file written under its final name", _BEFORE)
_ALONE = "If the newest checkpoint is damaged, there is no other one. Keep the one before it."
_KILLS = ("SIGKILL", "SIGXFSZ")
_ENDLESS = "Does the loop end when run.step equals run.steps? run.update() counts the updates, so your code must not."
_FROM_START = "The run started from the beginning. First load the newest complete checkpoint into the run."
_HIDDEN_KEY = "You load a key that you did not save, and your except hides the error."
_STEP_OF_STATE = "The number of updates belongs to the state. Save run.step as it is at that moment."
_CHANGED_RUN = "The losses differ from those of a run that was never stopped. Saving must not change the run."
_WRITING_FAULTS = (  # what ``Process.renames`` calls the fault, what is expected, and the hint
    (
        "elsewhere",
        "a temporary file in the folder of the checkpoints",
        "A rename fails between two file systems. Write the temporary file into the same folder.",
    ),
    (
        "unsynced",
        "a sync before each rename",
        "The new name may reach the disk before the bytes. Call os.fsync on the open file, then rename it.",
    ),
    (
        "unflushed",
        "all bytes synced",
        "At os.fsync some bytes may still be in Python's buffer. Call file.flush() first.",
    ),
)


class _Answer:
    """The learner's answer, whose processes work on one folder one after another.

    Attributes:
        folder: The folder of the checkpoints.
        parts: The digests of the parts of a run without a kill, after each number of updates.
        losses: The losses of a run without a kill.
    """

    def __init__(self, fn: Callable, folder: Path) -> None:
        self._fn = fn
        self._log = folder / "log"
        self.folder = folder / "run"
        self.folder.mkdir()
        self.parts, self.losses = _run_without_kill()

    def start(self, kill: Kill | None = None) -> Process:
        """Start the answer once more, and return what it did until the run ended or the kill came."""
        ended_by = message = ""
        self._log.unlink(missing_ok=True)
        arguments = (self._fn, self.folder, _EVERY, self._log, kill or Kill())
        try:
            run_on_ranks(train_until_killed, 1, *arguments, hang_hint=_ENDLESS)
        except RankError as error:
            ended_by = error.kind
            message = error.message.partition("\n")[0]
        process = read_log(self._log)
        process.ended_by = ended_by
        process.message = message
        return process

    def start_and_kill(self, kill: Kill) -> Process:
        """Start a process which this kill must end."""
        process = self.start(kill)
        if process.ended_by not in _KILLS:
            self.check_finished(process)
            if kill.at_rename and not process.renames:
                raise Wrong(*_UNDER_ITS_NAME)
            raise Wrong(f"a checkpoint written after update {kill.at_step}", "none", f"Save every {_EVERY} updates.")
        return process

    def check_continues(self, after: int, hint: str = "", kill: Kill | None = None) -> None:
        """Start the next process, which must continue after so many updates with every part of the state.

        Args:
            after: The number of updates.
            hint: The hint if the process continues elsewhere.
            kill: The kill that ends the process. Without a kill, the process must finish the run.
        """
        process = self.start_and_kill(kill) if kill else self.start()
        if process.initial is None:
            self.check_finished(process, hint)
        step, digests = process.initial or _NO_UPDATE
        if step != after:
            raise self._wrong_step(process, after, hint)
        for part in PARTS:
            if digests[part] != self.parts[after][part]:
                raise Wrong(f"{part} as after {after} updates", "another state", _FORGOTTEN[part])
        if not kill:
            self.check_finished(process, hint)

    def _wrong_step(self, process: Process, after: int, hint: str) -> Wrong:
        """Return the error for a process that continues after another number of updates."""
        expected = f"it continues after {after} updates"
        caught = f"; your code caught {process.caught} and continued" if process.caught else ""
        step, digests = process.initial or _NO_UPDATE
        if digests == self.parts[0]:
            hint = hint or _FROM_START
            if process.caught.startswith("KeyError"):
                hint = _HIDDEN_KEY
            return Wrong(expected, f"it starts from the beginning{caught}", hint)
        steps_of_weights = [n for n, parts in self.parts.items() if parts["model"] == digests.get("model")]
        if steps_of_weights and steps_of_weights[0] != step:
            n = steps_of_weights[0]
            return Wrong(f"run.step = {n} beside the weights after {n} updates", f"run.step = {step}", _STEP_OF_STATE)
        return Wrong(expected, f"after {step}{caught}", hint or "Load the newest complete checkpoint.")

    def check_finished(self, process: Process, hint: str = "") -> None:
        """A process must reach the end of the run, with the losses of a run without a kill."""
        if process.ended_by:
            raise Wrong("the run continues to its end", f"{process.ended_by}: {process.message}", hint)
        n_updates = max(process.losses, default=0)
        if n_updates != _STEPS:
            raise Wrong(f"{_STEPS} updates", f"{n_updates}", "Call run.update() until run.step is run.steps.")
        for number, loss in process.losses.items():
            expected = self.losses.get(number)
            if loss != expected:
                raise Wrong(f"loss {expected} in update {number}", loss, _CHANGED_RUN)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints, the newest last. A small file, which may only name a checkpoint, is left out."""
        statuses = {path: path.stat() for path in self.folder.rglob("*") if path.is_file()}
        largest_bytes = max((status.st_size for status in statuses.values()), default=0)
        large = [path for path, status in statuses.items() if 2 * status.st_size > largest_bytes]
        return sorted(large, key=lambda path: statuses[path].st_mtime_ns)


@functools.cache
def _run_without_kill() -> tuple[dict[int, dict[str, str]], dict[int, float]]:
    """Return the result of ``train_without_kill`` in a process like those of the answer."""
    return run_on_ranks(train_without_kill, 1)[0]


def _case(check: Callable[[_Answer], None]) -> Callable[[Callable], None]:
    """Return the case that calls the check with an answer on an empty folder."""

    def case(fn: Callable) -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(_Answer(fn, Path(folder)))

    case.__doc__ = check.__doc__
    return case


@_case
def _check_without_kill(answer: _Answer) -> None:
    """Without a kill, it makes all updates and leaves a checkpoint"""
    answer.check_finished(answer.start())
    if not answer.checkpoints():
        raise Wrong("checkpoints in the folder", "no file", f"After every {_EVERY} updates, save into the folder.")


@_case
def _check_writing(answer: _Answer) -> None:
    """Each file is flushed, synced and then renamed, in one folder, and two checkpoints stay"""
    process = answer.start()
    if not process.renames:
        raise Wrong(*_UNDER_ITS_NAME)
    for fault, expected, hint in _WRITING_FAULTS:
        if fault in process.renames:
            raise Wrong(expected, f"{fault} in {process.renames.count(fault)} of {len(process.renames)} files", hint)
    n_files = len(answer.checkpoints())
    if n_files > 3:
        raise Wrong(
            "two checkpoints",
            f"{n_files} files",
            "Remove old checkpoints when a new one is complete, because disks fill up.",
        )
    if n_files < 2:
        raise Wrong("two checkpoints", f"{n_files} file", _ALONE)
    if min(process.n_remaining, default=2) < 2:
        hint = "You removed an old checkpoint before the rename. A kill in between leaves only one. Remove last."
        raise Wrong("two checkpoints at any time", f"{min(process.n_remaining)} for a while", hint)


@_case
def _check_kill_in_update(answer: _Answer) -> None:
    """Killed in an update, it continues with the complete state"""
    answer.start_and_kill(Kill(at_step=8))
    answer.check_continues(6, kill=Kill(at_step=14))
    answer.check_continues(12, "Names that are sorted as text put step-9 after step-12. Sort by the number.")


@_case
def _check_kill_in_writing(answer: _Answer) -> None:
    """Killed during the writing, it continues from the checkpoint before"""
    answer.start_and_kill(Kill(at_step=5, at_share=0.5))
    answer.check_continues(3, _BEFORE)


@_case
def _check_kill_before_rename(answer: _Answer) -> None:
    """A complete file without its final name is ignored"""
    answer.start_and_kill(Kill(at_step=8, at_rename=True))
    answer.check_continues(6, "A file without its final name is not a checkpoint. Look for final names only.")


@_case
def _check_damaged_newest(answer: _Answer) -> None:
    """If the newest file is damaged, the one before it is loaded"""
    answer.start_and_kill(Kill(at_step=8))
    *before, newest = answer.checkpoints()
    if not before:
        raise Wrong("two checkpoints", "1 file", _ALONE)
    os.truncate(newest, newest.stat().st_size // 2)
    hint = "After a power failure, a file may be incomplete. If torch.load fails, load the one before it."
    answer.check_continues(3, hint)


@_case
def _check_random_kills(answer: _Answer) -> None:
    """Killed again and again at random moments, it ends with the same losses"""
    generator = random.Random()
    for step in sorted(generator.sample(range(4, _STEPS - 3), 2)):
        kill = generator.choice([Kill(step), Kill(step, at_share=generator.random()), Kill(step, at_rename=True)])
        process = answer.start(kill)
        if process.ended_by not in _KILLS:
            answer.check_finished(process, _BEFORE)
    answer.check_finished(answer.start(), _BEFORE)


_HINTS = (
    "On what does the next update depend? On six things: run.step, four state_dicts, and torch's random state.",
    "What is in a file with the final name during the writing? And after a power failure?",
    "Which files may you remove, and when? Which checkpoint do you load if the newest one is damaged?",
)
_CODE = (
    "with open(temporary, 'wb') as file: torch.save(state, file); file.flush(); os.fsync(file.fileno())",
    "temporary.replace(folder / f'step-{run.step:08d}.pt')  # then remove all but the newest two",
    "for file in sorted(folder.glob('step-*.pt'), reverse=True): try torch.load, except: the next",
)
EXERCISE = Exercise(
    name="kill_and_resume",
    chapter="10",
    cases=[
        _check_without_kill,
        _check_kill_in_update,
        _check_kill_in_writing,
        _check_kill_before_rename,
        _check_damaged_newest,
        _check_writing,
        _check_random_kills,
    ],
    hints=_HINTS,
    code=_CODE,
    deadline_s=180.0,
)
