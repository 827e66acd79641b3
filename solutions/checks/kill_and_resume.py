"""Checks of chapter 10's exercise: checkpoints that survive a kill at any moment.

The answer trains a ``TinyRun`` in a process of its own, which really dies: by SIGKILL in an update or before a file
takes its name, by the system in the midst of writing one (a limit on the size of files, whose signal is not caught).
Then it is called again, and the state it goes on with is compared with that of a run that never stopped.
"""

import functools
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.kill_harness import PARTS, Kill, Process, never_stopped, train_until_killed
from dltutorial.launch import RankFailed, RanksHang, launch

_EVERY = 3
PATIENCE_S = 20.0  # for a process that shares busy cores
_STEPS = 16  # of a TinyRun
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
_KILLED = ("SIGKILL", "SIGXFSZ")
_WRITTEN = (  # what can be wrong with a file that takes its name; what is expected; why
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
    """The learner's answer: its processes on one folder, one after another, beside a run that never stops."""

    def __init__(self, fn: Callable, folder: Path) -> None:
        self._fn, self._log = fn, folder / "log"
        self.folder = folder / "run"
        self.folder.mkdir()
        self.parts, self.losses = _expected()

    def start(self, kill: Kill | None = None) -> Process:
        """Start it once more, until the run ends or the kill comes."""
        process, given = Process(), (self._fn, self.folder, _EVERY, self._log, kill or Kill())
        self._log.unlink(missing_ok=True)
        try:
            launch(train_until_killed, 1, *given, timeout_s=PATIENCE_S, backend="gloo")
        except RankFailed as failed:
            if failed.kind == "NotImplementedError":
                raise NotImplementedError from None
            process.ended, process.told = failed.kind, failed.message.partition("\n")[0]
        except RanksHang:
            hint = "Does the loop end once run.step is run.steps? run.update() counts; nobody else has to."
            raise Wrong("the end of the run", f"none within {PATIENCE_S:g} s", hint) from None
        for line in self._log.read_text().splitlines() if self._log.exists() else []:
            what, number, *more = line.split(" ")
            if what == "before" and process.began is None:
                process.began = int(number), dict(zip(PARTS, more, strict=True))
            elif what == "loss":
                process.losses[int(number)] = float.fromhex(more[0])
            elif what == "rename":
                process.renames.append(number)
            elif what == "left":
                process.fewest.append(int(number))
            elif what == "caught":
                process.caught = line.partition(" ")[2]
        return process

    def killed(self, kill: Kill) -> Process:
        """A process that this kill ends."""
        process = self.start(kill)
        if process.ended not in _KILLED:
            self.finished(process)
            if kill.at_rename and not process.renames:
                raise Wrong(*_UNDER_ITS_NAME)
            raise Wrong(f"a checkpoint written after update {kill.at_step}", "none", f"Save every {_EVERY} updates.")
        return process

    def goes_on(self, after: int, hint: str = "", kill: Kill | None = None) -> None:
        """The next process goes on after so many updates with every part as it was, and ends as if nothing had been."""
        process = self.killed(kill) if kill else self.start()
        if process.began is None:
            self.finished(process, hint)
        step, found = process.began or (0, {})
        known = self.parts[after]
        if step != after:
            caught = f"; your code met {process.caught}, and went on" if process.caught else ""
            if found == self.parts[0]:
                advice = hint or "It began anew. Look for the newest whole checkpoint first, and load it into the run."
                if caught.startswith("; your code met KeyError"):
                    advice = "A key that you load is not among those that you save, and your except hides it."
                got = f"it starts from the beginning{caught}"
                raise Wrong(f"it goes on after {after} updates", got, advice)
            true = next((n for n, parts in self.parts.items() if parts["model"] == found["model"]), None)
            if true is not None and true != step:
                advice = "The number of updates made belongs to the state, as it is at that moment: run.step."
                raise Wrong(f"run.step = {true} beside the weights after {true} updates", f"run.step = {step}", advice)
            got = f"after {step}{caught}"
            raise Wrong(f"it goes on after {after} updates", got, hint or "Take the newest whole one.")
        for part in PARTS:
            if found[part] != known[part]:
                raise Wrong(f"{part} as after {after} updates", "another state", _FORGOTTEN[part])
        if not kill:
            self.finished(process, hint)

    def finished(self, process: Process, hint: str = "") -> None:
        """This process came to the end of the run, with the losses of one that never stopped."""
        if process.ended:
            raise Wrong("the run goes on to its end", f"{process.ended}: {process.told}", hint)
        if not process.losses or max(process.losses) != _STEPS:
            done = max(process.losses, default=0)
            raise Wrong(f"{_STEPS} updates", f"{done}", "Call run.update() until run.step is run.steps.")
        wrong = [n for n, loss in process.losses.items() if loss != self.losses.get(n)]
        if wrong:
            advice = "The losses are not those of a run that is left alone. Saving must not change the run."
            raise Wrong(f"loss {self.losses.get(wrong[0])} in update {wrong[0]}", process.losses[wrong[0]], advice)

    def files(self) -> list[Path]:
        """The checkpoints, newest last; a small file that only names one is none."""
        found = {path: path.stat() for path in self.folder.rglob("*") if path.is_file()}
        largest = max((of.st_size for of in found.values()), default=0)
        return sorted((path for path in found if 2 * found[path].st_size > largest), key=lambda p: found[p].st_mtime_ns)


@functools.cache
def _expected() -> tuple[dict[int, dict[str, str]], dict[int, float]]:
    """What ``never_stopped`` finds, in a process like those of the answer."""
    return launch(never_stopped, 1, backend="gloo")[0]


def _case(check: Callable[["_Answer"], None]) -> Callable[[Callable], None]:
    """A case that gets a folder of its own."""

    def case(fn: Callable) -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(_Answer(fn, Path(folder)))

    case.__doc__ = check.__doc__
    return case


@_case
def _saves_on_its_way(answer: _Answer) -> None:
    """Left alone, it makes all updates, and leaves a checkpoint"""
    answer.finished(answer.start())
    if not answer.files():
        raise Wrong("checkpoints in the folder", "no file", f"After every {_EVERY} updates, save into the folder.")


@_case
def _is_orderly(answer: _Answer) -> None:
    """Each file is flushed, synced, then takes its name, in one folder; two checkpoints stay"""
    process = answer.start()
    if not process.renames:
        raise Wrong(*_UNDER_ITS_NAME)
    for how, expected, hint in _WRITTEN:
        if how in process.renames:
            raise Wrong(expected, f"{how} in {process.renames.count(how)} of {len(process.renames)} files", hint)
    n_files = len(answer.files())
    if n_files > 3:
        raise Wrong("two checkpoints", f"{n_files} files", "Remove old ones once a new one is whole: disks fill up.")
    if n_files < 2:
        raise Wrong("two checkpoints", f"{n_files} file", _ALONE)
    if min(process.fewest, default=2) < 2:
        hint = "An old one went before the new one had its name: killed in between, you have one alone. Remove last."
        raise Wrong("two checkpoints at any time", f"{min(process.fewest)} for a while", hint)


@_case
def _killed_in_an_update(answer: _Answer) -> None:
    """Killed in an update, it goes on with every part as it was"""
    answer.killed(Kill(at_step=8))
    answer.goes_on(6, kill=Kill(at_step=14))
    answer.goes_on(12, "Names sorted as text put step-9 after step-12. Sort by the number.")


@_case
def _killed_in_writing(answer: _Answer) -> None:
    """Killed in the midst of writing, it goes on from the checkpoint before"""
    answer.killed(Kill(at_step=5, at_share=0.5))
    answer.goes_on(3, _BEFORE)


@_case
def _killed_before_naming(answer: _Answer) -> None:
    """A file that is whole but has not its name yet does not count, and does no harm"""
    answer.killed(Kill(at_step=8, at_rename=True))
    answer.goes_on(6, "What has not got its name is not a checkpoint. Let your search find real names only.")


@_case
def _newest_is_cut(answer: _Answer) -> None:
    """A newest file that is not whole is passed over"""
    answer.killed(Kill(at_step=8))
    *before, newest = answer.files()
    if not before:
        raise Wrong("two checkpoints", "1 file", _ALONE)
    os.truncate(newest, newest.stat().st_size // 2)
    hint = "After a power failure a file may be cut. If torch.load fails, take the one before it."
    answer.goes_on(3, hint)


@_case
def _killed_at_random(answer: _Answer) -> None:
    """Killed again and again at random moments, it ends with the same losses"""
    rng = random.Random()
    for step in sorted(rng.sample(range(4, _STEPS - 3), 2)):
        kill = rng.choice([Kill(step), Kill(step, at_share=rng.random()), Kill(step, at_rename=True)])
        process = answer.start(kill)
        if process.ended not in _KILLED:
            answer.finished(process, _BEFORE)
    answer.finished(answer.start(), _BEFORE)


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
        _saves_on_its_way,
        _killed_in_an_update,
        _killed_in_writing,
        _killed_before_naming,
        _newest_is_cut,
        _is_orderly,
        _killed_at_random,
    ],
    hints=_HINTS,
    code=_CODE,
    deadline_s=180.0,
)
