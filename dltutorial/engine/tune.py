"""``dltutorial tune``: many short trainings, of which the poor ones end early; any number of workers share one study.

In: a space of knobs, how many trials. Out: a folder in the runs folder: ``journal.log``, Optuna's storage, to which all
workers append, and a run's folder for each trial. Nobody leads: each worker asks the journal what to try next, trains,
and tells. Rungs lie at 1/9, 1/3 and all of the updates; at each a trial goes on only if it is among the best third of
those that came so far; of the first two, if it is the best so far (Optuna's variant of asynchronous successive halving,
which never takes up again whom it has stopped; Li et al. 2018, arXiv:1810.05934).

A worker holds a lock for as long as it lives. The trial of one that has died counts as failed, and is tried anew with
other knobs: the budget is spent on trials that ended. So, after a while, does that of one that was stopped. Ray Tune
can lead instead (``tune_ray``).
"""

import contextlib
import errno
import itertools
import json
import math
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage, journal
from optuna.trial import TrialState

from dltutorial import node, paths
from dltutorial.config import Preset, preset
from dltutorial.engine import run, run_lock
from dltutorial.engine.command import stop_signals
from dltutorial.engine.recipe import Recipe
from dltutorial.errors import CourseError, DivergedError, Interrupted
from dltutorial.ranks import RankInfo
from dltutorial.science import cases

ETA = 3  # a rung is so many times as long as the one before, and every so many-th trial reaches it
ADVICE = "one score in many is lucky: judge these knobs by dltutorial train with other --seed"
_NEW_S = 60.0  # so long a trial may have no name of its worker
_SILENT_S = 300.0  # so long its worker may make no update
_TELL_S = 10.0  # so long one waits for others without a word
_LOCKED_S = 2.0  # so long for the journal's lock, which is held for milliseconds


class Knob(NamedTuple):
    """What may be tried of one knob: numbers from … to, on a logarithmic scale or not, or a few values."""

    least: float = 0.0
    most: float = 0.0
    log: bool = False
    values: tuple = ()


def read_space(words: list[str]) -> dict[str, Knob]:
    """``learning_rate=1e-4..1e-2:log``, ``warmup_steps=0..40`` or ``optimizer=adamw,lamb``, by name.

    Raises:
        CourseError: such a knob does not exist, is named twice, or has no such values.
    """
    kinds, found = {name: field.type for name, field in Recipe.knobs().items()}, {}
    for word in words:
        name, _, said = word.partition("=")
        kind: Any = kinds.get(name := name.replace("-", "_"))
        if kind not in (int, float, str, bool) or name in found or not said:
            what = f"{name} is named twice" if name in found else f"{word!r} is no knob with values"
            raise CourseError(f"--knob: {what}; write learning_rate=1e-4..1e-2:log, or optimizer=adamw,lamb")
        read = {"true": True, "false": False}.__getitem__ if kind is bool else kind
        try:
            if ".." in said:
                least, most = (float(read(x)) for x in said.removesuffix(":log").split(".."))
                found[name] = Knob(least, most, said.endswith(":log"))
                finite = math.isfinite(least) and math.isfinite(most)
                if not (finite and kind in (int, float) and least < most and (least > 0 or not found[name].log)):
                    raise ValueError
            else:
                found[name] = Knob(values=tuple(map(read, said.split(","))))
        except (ValueError, KeyError, OverflowError):
            why = f"{said!r} are no values of {name}, which is of type {kind.__name__}"
            numbers = "two whole numbers" if kind is int else "LEAST below MOST"
            raise CourseError(f"--knob: {why}; a range is LEAST..MOST, {numbers}, or with :log, above 0") from None
    return found


def _refuse_values(space: Mapping[str, Knob], look: Callable[[dict], object]) -> None:
    """Look at each value, and (of many, some) at all together. CourseError: what cannot be.

    Of a range: its whole numbers, if they are at most 100, else its ends.
    """
    kinds: dict[str, Any] = {name: field.type for name, field in Recipe.knobs().items()}
    tried: dict[str, Any] = {name: knob.values or [*map(kinds[name], knob[:2])] for name, knob in space.items()}
    for name in (n for n, knob in space.items() if not knob.values and kinds[n] is int):
        between = range(tried[name][0] + 1, tried[name][1])
        tried[name] += between if len(between) < 99 else ()
    firsts = {name: values[0] for name, values in tried.items()}
    each = (firsts | {name: value} for name, values in tried.items() for value in values)
    every = (dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values()))
    look({})  # what all share
    for chosen in itertools.chain(each, itertools.islice(every, 1000)):
        try:
            look(chosen)
        except CourseError as error:
            words = " ".join(f"--knob {name}={value}" for name, value in chosen.items() if name in str(error))
            raise CourseError(f"{words or chosen} cannot be tried: {error}") from error


class Search(NamedTuple):
    """What is to be tried: knobs that all trials share, knobs that differ, on which data, where, how many trials."""

    base: Preset
    fixed: dict
    space: dict[str, Knob]
    data: Path
    data_id: str
    folder: Path
    trials: int

    @property
    def case(self) -> Any:
        """What is trained: a module, see ``science.cases``."""
        return cases.case(self.fixed.get("task", "weather"))

    def recipe(self, chosen: Mapping[str, Any]) -> tuple[Recipe, dict[int, int]]:
        """With some knobs chosen: a recipe that is validated at each rung, and the rungs by their update."""
        knobs = {"log_every": 10**6} | self.fixed | dict(chosen)
        steps = self.case.make_recipe(self.base, knobs, self.data).steps
        every = max(1, steps // ETA**2)
        recipe = self.case.make_recipe(self.base, knobs | {"eval_every": every}, self.data)
        return recipe, {every: 1, ETA * every: ETA, steps: ETA**2}


def tune(
    preset_name: str, fixed: dict, words: list[str],
    *, data: Path | None, name: str, trials: int, engine: str, **how: str,
) -> None:  # fmt: skip
    """Be a worker of an Optuna study, or lead all workers of Ray's, until so many trials have ended; print the best.

    Args:
        preset_name: where the knobs come from that are neither shared nor tried.
        fixed: knobs that all trials share.
        words: of the command line, for ``read_space``.
        data: the data set; None: simulate the preset's.
        name: of the study; workers of Optuna that give the same one share it.
        trials: that are to end, at the last rung or before.
        engine: ``optuna`` or ``ray``.
        how: ``sampler`` (``tpe``, ``random``) and ``scheduler`` (``asha``, ``pbt``, ``none``), of all workers alike.

    Raises:
        Interrupted: a signal asked for an end; the trial counts as failed.
        CourseError: a knob that cannot be; the study has another space; its journal cannot be read or written.
    """
    node.refuse_on_login("tuning", "send workers to Slurm: sbatch --array=0-7 slurm/tune.sbatch, with the same options")
    if RankInfo.from_env().world_size > 1:
        raise CourseError("a worker is one process; start several as a job array, not as ranks")
    base, space, folder = preset(preset_name), read_space(words), paths.inside(paths.runs_dir(), name)
    if both := sorted(set(space) & set(fixed)):
        raise CourseError(f"{both[0]} is to be tried and fixed; leave one out")
    if engine == "optuna" and how["scheduler"] == "pbt":
        raise CourseError("--scheduler pbt copies weights from trial to trial, which Optuna cannot: add --engine ray")
    for word, why in (("eval_every", "a trial is validated at its rungs"), ("task", "a study has one: --task NAME")):
        if word in space or word in set(fixed) - {"task"}:
            raise CourseError(f"{word} is tune's own: {why}; leave it out")
    case = cases.case(fixed.get("task", "weather"))
    recipe = case.make_recipe(base, fixed, data)
    shape = {name: getattr(recipe, name) for name in ("n_channels", "n_lat", "n_lon")}  # so no file is read again
    _refuse_values(space, lambda chosen: run.check_ranks(case.make_recipe(base, shape | fixed | chosen, None), 1))
    data = data or case.ensure(recipe)
    search = Search(base, fixed, space, data, case.make_task(recipe, data).data_id, folder, trials)
    with _environment("WANDB_RUN_GROUP", os.environ.get("WANDB_RUN_GROUP", name)):  # the trials are a group
        if engine == "ray":
            from dltutorial.engine import tune_ray

            elsewhere = search._replace(data=data.absolute(), folder=folder.absolute())  # its workers stand there
            tune_ray.lead(elsewhere, how["scheduler"])
        else:
            worker(search, how)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside ``with``; afterwards it is as before."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def worker(search: Search, how: Mapping[str, str]) -> None:
    """One worker of a study on Optuna's journal; see ``tune``."""
    folder, trials = search.folder, search.trials
    about = {"fixed": search.fixed, "space": search.space, "preset": search.base.name, "data set": search.data_id}
    about |= how
    with _journal(folder) as storage:
        study = _study(storage, folder.name, about)
        me = f"worker-{uuid.uuid4().hex[:8]}"
        with run_lock.owned(folder / me), run_lock.beating(folder / me), stop_signals() as came:
            began_s, told = time.monotonic(), False
            while True:
                _give_back(study, folder)
                every = study.get_trials(deepcopy=False)
                ended = sum(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) for trial in every)
                if ended >= trials:
                    break
                if came:
                    raise Interrupted(f"asked to end after {ended} of {trials} trials; the same command goes on")
                if ended + sum(trial.state == TrialState.RUNNING for trial in every) >= trials:
                    waited_s = time.monotonic() - began_s
                    if waited_s > _TELL_S and not told:
                        told = True
                        print(f"waits for the last trials of other workers; {_SILENT_S:g} s of silence end one")
                    time.sleep(0.2)  # another worker may die
                    continue
                began_s, told = time.monotonic(), False
                trial = study.ask()
                trial.set_user_attr("worker", me)
                before = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number]
                if sum(t.state not in (TrialState.FAIL, TrialState.WAITING) for t in before) >= trials:
                    study.tell(trial, state=TrialState.FAIL)  # two have asked at once for the last one
                    continue
                _try(study, trial, search, lambda: bool(came))
    _say_best(study)


def _try(study: Any, trial: Any, search: Search, asked_to_end: Callable[[], bool]) -> None:
    """Train with the knobs of one trial, up to the rung at which it is not among the best."""
    kinds: dict[str, Any] = {name: field.type for name, field in Recipe.knobs().items()}
    place, state, value = search.folder / f"trial-{trial.number:04d}", TrialState.FAIL, None
    chosen = {name: _suggest(trial, name, knob, kinds[name]) for name, knob in search.space.items()}
    try:
        recipe, rungs = search.recipe(chosen)
        task = search.case.make_task(recipe, search.data)
        if place.exists():
            raise CourseError(f"{place} is there already, which the journal does not know; take another --name")
        seen = run.train(task, recipe, place, progress=False, asked_to_end=asked_to_end)
        with contextlib.closing(seen):  # type: ignore[type-var]
            for record in seen:
                value = record.scores.get(search.case.SCORE, value)
                if record.scores and record.step in rungs:
                    trial.report(value, rungs[record.step])
                    if record.step < recipe.steps and trial.should_prune() and not _is_last_hope(study, search.trials):
                        state = TrialState.PRUNED
                        break
            else:
                state = TrialState.COMPLETE
    except DivergedError:
        state = TrialState.PRUNED
    except Interrupted:
        why = f"asked to end in trial {trial.number}, which counts as failed; the same command goes on"
        raise Interrupted(why) from None
    except optuna.exceptions.UpdateFinishedTrialError:  # who removes hidden files removes locks
        print(f"trial {trial.number} was taken back by another worker, which saw no sign of life of this one")
    finally:
        study.tell(trial, value if state == TrialState.COMPLETE else None, state=state, skip_if_finished=True)
    if "tensorboard" in recipe.track and value is not None:
        from torch.utils.tensorboard import SummaryWriter

        where = str(place / "tensorboard")
        with SummaryWriter(where) as board:  # a page of all trials, HPARAMS
            board.add_hparams(chosen, {"score": value}, run_name=".")
    told = f"{value:.4f}" if value is not None else "diverged"
    print(f"trial {trial.number}: {told}, {state.name.lower()} · {in_words(chosen)}", flush=True)


def _is_last_hope(study: Any, trials: int) -> bool:
    """Whether this is the budget's last trial, and none has come to its end. (Killed ones count at their rungs.)"""
    states = Counter(trial.state for trial in study.get_trials(deepcopy=False))
    return not states[TrialState.COMPLETE] and states[TrialState.PRUNED] >= trials - 1


def _suggest(trial: Any, name: str, knob: Knob, kind: type) -> Any:
    if knob.values:
        return trial.suggest_categorical(name, knob.values)
    if kind is int:
        return trial.suggest_int(name, int(knob.least), int(knob.most), log=knob.log)
    return trial.suggest_float(name, knob.least, knob.most, log=knob.log)


def in_words(chosen: Mapping[str, Any]) -> str:
    """Knobs as options of ``dltutorial train``."""
    return " ".join(f"--{name.replace('_', '-')} {v:.4g}" if type(v) is float else f"--{name.replace('_', '-')} {v}"
                    for name, v in chosen.items())  # fmt: skip


def _study(storage: Any, name: str, about: Mapping[str, Any]) -> Any:
    """The study of that name, which all workers describe alike."""
    tpe = about["sampler"] == "tpe"
    if (others := optuna.get_all_study_names(storage)) and name not in others:
        raise CourseError(f"its journal is of the study {others[0]}: give the folder that name again")
    sampler = optuna.samplers.TPESampler(constant_liar=True) if tpe else optuna.samplers.RandomSampler()
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)
    study = optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, load_if_exists=True,
        pruner=pruner if about["scheduler"] == "asha" else optuna.pruners.NopPruner(),
    )  # fmt: skip
    said = json.loads(json.dumps(about))
    kept = study.user_attrs
    for what, value in said.items():
        if what not in kept:
            study.set_user_attr(what, value)
        elif kept[what] != value:
            raise CourseError(f"the study {name} has another {what} ({kept[what]}); take it, or another --name")
    return study


def _give_back(study: Any, folder: Path) -> None:
    """Trials whose worker has died, or gave no sign of life for long, are failed, so that others take their place."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        worker = trial.user_attrs.get("worker")
        age_s = time.time() - trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        silent = worker and run_lock.silent_s(folder / worker) > _SILENT_S
        if (worker is None and abs(age_s) > _NEW_S) or (worker and not run_lock.is_owned(folder / worker)) or silent:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            print(f"trial {trial.number} was lost with its worker; its budget is given back", flush=True)


@contextlib.contextmanager
def _held(lock: Any, file: Path) -> Iterator[None]:
    """Hold the journal's lock; after a while in vain say what is waited for."""
    says = f"waits for {file}.lock, which another worker holds: {lock.grace_period} s if that one was killed"
    told = threading.Timer(_LOCKED_S, print, [says], {"file": sys.stderr})
    told.start()
    try:
        lock.acquire()
    finally:
        told.cancel()
    try:
        yield
    finally:
        try:
            lock.release()
        except RuntimeError as error:  # its folder was moved away meanwhile
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file)) from error


def _no_journal(file: Path, why: object) -> CourseError:
    return CourseError(f"{file} is no journal of Optuna's ({why}); move {file.parent} away, or take another --name")


def _mend(file: Path) -> None:
    """Take off a last line that a kill or a full disk has cut short, end one that is whole; the lock is held.

    Raises:
        CourseError: the last line is none that Optuna writes.
        OSError: it is no regular file, or cannot be read.
    """
    if file.is_symlink():
        raise _no_journal(file, "a link")
    with open(file, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 2**20))
        lines, newline, cut = stream.read().rpartition(b"\n")
    begins = b'{"op_code":'
    if newline and not (lines.rpartition(b"\n")[2].startswith(begins) and lines.endswith(b"}")):
        raise _no_journal(file, "its last line is none")
    if cut and cut.strip(b"\0") and not (cut.startswith(begins) or begins.startswith(cut)):
        raise _no_journal(file, "its last line is none")
    with contextlib.suppress(ValueError):
        if json.loads(cut):  # the next line would be glued to it
            with open(file, "ab") as stream:
                stream.write(b"\n")
            return
    if cut:
        os.truncate(file, size - len(cut))
        print(f"{file}: its last line was cut short, and is taken off", file=sys.stderr)


@contextlib.contextmanager
def _journal(folder: Path) -> Iterator[Any]:
    """Optuna's storage in the study's folder. CourseError: it cannot be opened or read, here or inside ``with``."""

    class Backend(journal.JournalFileBackend):
        """Optuna's own, where nobody appends to half a line that another one has left."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
            with _held(lock, file):
                _mend(file)
                with open(file, "ab") as stream:
                    stream.write(lines)
                    stream.flush()
                    os.fsync(stream.fileno())

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = folder / "journal.log"
    lock = journal.JournalFileOpenLock(str(file))
    try:
        others = [f for f in folder.glob("*") if not f.name.startswith("journal.log")]
        if others and (not file.exists() or not file.stat().st_size):
            why = "holds trials, but their journal is empty" if file.exists() else "holds other things than a study"
            raise CourseError(f"{folder} {why}; take another --name, or move it away")
        folder.mkdir(parents=True, exist_ok=True)
        with _held(lock, file):
            file.touch()
            _mend(file)
        try:
            storage = JournalStorage(Backend(str(file)))
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:  # whatever JSON it may be
            raise _no_journal(file, error) from error
        yield storage
    except json.JSONDecodeError as error:  # somebody else has written into it
        raise _no_journal(file, error) from error
    except OSError as error:
        if not str(error.filename).startswith(str(folder / "journal")) and error.filename != str(folder):
            raise  # of a trial
        raise CourseError(f"cannot read or write {file}: {error.strerror}; choose a folder that all share") from error


def _say_best(study: Any) -> None:
    n = Counter(trial.state.name.lower() for trial in study.trials)
    print(f"{study.study_name}: {', '.join(f'{count} {state}' for state, count in sorted(n.items()))}")
    if not study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        why = "all diverged or ended early; let --knob name other values, under another --name"
        raise CourseError(f"no trial came to its end: {why}")
    best = study.best_trial
    print(f"best: {best.value:.4f}, trial {best.number} · {in_words(best.params)}")
    print(ADVICE)
