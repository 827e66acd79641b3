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
    "model": "The weights are not those of the checkpoint: model.load_state_dict.",
    "optimizer": "AdamW's averages start from zero again. Save and load the optimizer's state_dict, too.",
    "scheduler": "The learning rate is at another place of its schedule. Save and load the scheduler's state_dict.",
    "order": "The data begin from another place: samples come twice, others never. Save and load the order's state.",
    "random": "Dropout draws other numbers than it would have. Save torch.get_rng_state(), and set it after loading.",
}
_BEFORE = "A kill in the midst of writing must leave the one before it whole: write to another name, then rename."
_UNDER_ITS_NAME = ("a file that takes its name when it is whole", "one written under its own name", _BEFORE)
_ALONE = "Should the newest be damaged, there is nothing to fall back on. Keep one before it."
_KILLS = ("SIGKILL", "SIGXFSZ")
_ENDLESS = "Does the loop end once run.step is run.steps? run.update() counts; nobody else has to."
_FROM_START = "It began anew. Look for the newest whole checkpoint first, and load it into the run."
_HIDDEN_KEY = "A key that you load is not among those that you save, and your except hides it."
_STEP_OF_STATE = "The number of updates made belongs to the state, as it is at that moment: run.step."
_CHANGED_RUN = "The losses are not those of a run that is left alone. Saving must not change the run."
_WRITING_FAULTS = (  # what ``Process.renames`` calls the fault, what is expected, and the hint
    (
        "elsewhere",
        "a temporary file in the folder of the checkpoints",
        "Another folder may be another file system: a rename then fails, or copies. Write the temporary one beside it.",
    ),
    (
        "unsynced",
        "a sync before each rename",
        "The name may reach the disk before the bytes do. Call os.fsync on the open file, then rename it.",
    ),
    (
        "unflushed",
        "all bytes synced",
        "At os.fsync some bytes may still be in Python's buffer: file.flush() first. (torch.save flushes by luck.)",
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
        expected = f"it goes on after {after} updates"
        caught = f"; your code met {process.caught}, and went on" if process.caught else ""
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
        return Wrong(expected, f"after {step}{caught}", hint or "Take the newest whole one.")

    def check_finished(self, process: Process, hint: str = "") -> None:
        """A process must reach the end of the run, with the losses of a run without a kill."""
        if process.ended_by:
            raise Wrong("the run goes on to its end", f"{process.ended_by}: {process.message}", hint)
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
    """Left alone, it makes all updates, and leaves a checkpoint"""
    answer.check_finished(answer.start())
    if not answer.checkpoints():
        raise Wrong("checkpoints in the folder", "no file", f"After every {_EVERY} updates, save into the folder.")


@_case
def _check_writing(answer: _Answer) -> None:
    """Each file is flushed, synced, then takes its name, in one folder; two checkpoints stay"""
    process = answer.start()
    if not process.renames:
        raise Wrong(*_UNDER_ITS_NAME)
    for fault, expected, hint in _WRITING_FAULTS:
        if fault in process.renames:
            raise Wrong(expected, f"{fault} in {process.renames.count(fault)} of {len(process.renames)} files", hint)
    n_files = len(answer.checkpoints())
    if n_files > 3:
        raise Wrong("two checkpoints", f"{n_files} files", "Remove old ones once a new one is whole: disks fill up.")
    if n_files < 2:
        raise Wrong("two checkpoints", f"{n_files} file", _ALONE)
    if min(process.n_remaining, default=2) < 2:
        hint = "An old one went before the new one had its name: killed in between, you have one alone. Remove last."
        raise Wrong("two checkpoints at any time", f"{min(process.n_remaining)} for a while", hint)


@_case
def _check_kill_in_update(answer: _Answer) -> None:
    """Killed in an update, it goes on with every part as it was"""
    answer.start_and_kill(Kill(at_step=8))
    answer.check_continues(6, kill=Kill(at_step=14))
    answer.check_continues(12, "Names sorted as text put step-9 after step-12. Sort by the number.")


@_case
def _check_kill_in_writing(answer: _Answer) -> None:
    """Killed in the midst of writing, it goes on from the checkpoint before"""
    answer.start_and_kill(Kill(at_step=5, at_share=0.5))
    answer.check_continues(3, _BEFORE)


@_case
def _check_kill_before_rename(answer: _Answer) -> None:
    """A file that is whole but has not its name yet does not count, and does no harm"""
    answer.start_and_kill(Kill(at_step=8, at_rename=True))
    answer.check_continues(6, "What has not got its name is not a checkpoint. Let your search find real names only.")


@_case
def _check_damaged_newest(answer: _Answer) -> None:
    """A newest file that is not whole is passed over"""
    answer.start_and_kill(Kill(at_step=8))
    *before, newest = answer.checkpoints()
    if not before:
        raise Wrong("two checkpoints", "1 file", _ALONE)
    os.truncate(newest, newest.stat().st_size // 2)
    hint = "After a power failure a file may be cut. If torch.load fails, take the one before it."
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
    "What does the next update depend on? Six things: run.step, four state_dicts, torch's random state.",
    "What does a reader find under a checkpoint's name while it is being written? And after the power went?",
    "Which files may go, and when? Which is the newest, if the newest is cut in the middle?",
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
