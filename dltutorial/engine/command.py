"""``dltutorial train``: one training run from the command line, new or gone on with, on any number of ranks.

In: knobs, and the variables of torchrun or srun if one of them has started this process. Out: the run's folder. Of
several ranks rank 0 prints and writes. When a rank fails it says why and ends; the others lose their connection to it,
say so, and end too: none is left waiting.
"""

import contextlib
import datetime
import os
import re
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from dltutorial import advice, node, paths
from dltutorial.config import Preset, preset
from dltutorial.engine.recipe import Recipe
from dltutorial.errors import CourseError, Interrupted
from dltutorial.ranks import RankInfo

# The first three are taken even where they are ignored. (`launch` asks its ranks by SIGUSR2, so there it is ignored.)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU, signal.SIGUSR2, signal.SIGHUP)
_WATCH_S = 2.0  # between two looks for ranks that failed
_SILENT_S = 300.0  # after which a rank that gives no sign of life has


def train(preset_name: str, knobs: dict, *, data: Path | None, name: str | None, overwrite: bool, resume: bool) -> None:
    """Simulate the data if none are given, train, print one line per record. With several ranks it ends the process.

    The shape of a sample is taken from the data where no knob sets it. A run to resume has its knobs already; those
    given here must agree.

    Raises:
        Interrupted: a signal asked the run to end; a checkpoint is written. (Ctrl-C: KeyboardInterrupt, with one, too.)
        CourseError: a knob, name, data set or folder that cannot be; ranks that do not meet; a login node.
    """
    node.refuse_on_login("training", "send it to Slurm: sbatch -N 1 slurm/train.sbatch, with the same options")
    info = RankInfo.from_env()
    if info.world_size == 1:
        return _train(preset_name, knobs, data, name, overwrite, resume)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is loaded: no C++ frames for a lost connection
    from dltutorial.engine.distributed import barrier
    from dltutorial.launch import process_group

    store, leaving = process_group.rendezvous(info), threading.Event()
    threading.Thread(target=end_with_others, args=(info, store, leaving), daemon=True).start()
    status = 0
    try:
        process_group.make_process_group(info, store, process_group.backend_for(knobs.get("device", "auto")))
        _train(preset_name, knobs, data, name, overwrite, resume)
        barrier()
    except BaseException as error:
        leaving.set()
        _ignore_signals()  # the launcher may end all when the first has ended
        status = _tell(error, info)
        with contextlib.suppress(RuntimeError):  # others are gone
            if isinstance(error, Interrupted):  # of all ranks alike: rank 0 has then closed the run's folder
                barrier()
            else:
                store.set("failed", "")
    leaving.set()
    _ignore_signals()
    process_group.leave(info, store, status, timeout_s=60.0 if status in (0, Interrupted.exit_status) else 2.0)


class _Heard:
    """A standard stream that ends no run: once nobody reads it (``| head``), or its disk is full, it goes nowhere."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return len(text)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Print on, into nothing, where nobody reads it any more or there is no room."""
    with contextlib.redirect_stdout(_Heard(sys.stdout)), contextlib.redirect_stderr(_Heard(sys.stderr)):
        yield


@heard()
def _train(preset_name: str, knobs: dict, data: Path | None, name: str | None, overwrite: bool, resume: bool) -> None:
    """What each rank does."""
    import numpy  # noqa: F401, I001 (torch would load it, and lose a Ctrl-C that comes meanwhile)
    from dltutorial.data.workers import workers_in_one_line
    from dltutorial.models.vit import count_parameters
    from dltutorial.record import records
    from dltutorial.science import cases
    from dltutorial.engine import run, run_folder
    from dltutorial.engine.distributed import all_or_none, broadcast_object, is_main, world_size

    say = print if is_main() else lambda line: None
    default = broadcast_object(f"train-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}")
    with all_or_none():
        if resume and name is None:
            raise CourseError("--resume needs to know which run; give its --name")
        if overwrite and any(os.getenv(f"{who}_RESTART_COUNT", "").strip("0") for who in ("TORCHELASTIC", "SLURM")):
            raise CourseError("started anew: --overwrite would take what the start before has made; give --resume")
        folder = paths.inside(paths.runs_dir(), default if name is None else name)
        before = run_folder.previous_recipe(folder, overwrite, resume) if is_main() else None
    before = broadcast_object(before)
    with all_or_none():
        base, knobs = _base(preset_name, knobs, before)
        case = cases.case(knobs.get("task", "weather"))
        if data is None:  # what cannot be is refused before anything is simulated
            shape = {name: getattr(before, name) for name in ("n_channels", "n_lat", "n_lon")} if before else {}
            wanted = case.make_recipe(base, shape | knobs, None)
            run.check_ranks(wanted, world_size())
            if before:
                run_folder.check_same(vars(before), wanted, folder)
    with all_or_none():
        data = data or case.ensure(wanted, progress=is_main())
        recipe = case.make_recipe(base, knobs, data)
        run.check_ranks(recipe, world_size())
        task = case.make_task(recipe, data)
    updates = f"{recipe.steps} updates of {recipe.global_batch_size} samples"
    say(f"{folder}: {count_parameters(task.model):,} parameters, {updates}")
    for line in getattr(case, "notes", lambda *_: ())(recipe, data):
        say(line)
    seen = None
    with workers_in_one_line(), stop_signals() as came:
        for seen in run.train(
            task, recipe, folder, overwrite=overwrite, resume=resume, progress=is_main(),
            asked_to_end=lambda: bool(came),
        ):  # fmt: skip
            if seen.scores:
                scores = " · ".join(f"{key.removeprefix('valid/')} {value:.3f}" for key, value in seen.scores.items())
                say(f"step {seen.step}: loss {seen.loss:.4f} · {seen.samples_per_s:.1f} samples/s · {scores}")
    if seen is None:
        say(f"{folder} is finished already, after {recipe.steps} updates; nothing was done")
    final = dict(seen.scores) if seen else run_folder.scores_of(folder) if is_main() else {}
    if final and not seen:  # a run may have been killed before it was recorded
        for record in records.read(paths.records_dir()):
            if record.get("run") == folder.name and final.get(record["what"]) == record["value"]:
                del final[record["what"]]
    for name, value in final.items() if is_main() else ():
        records.Writer("train", recipe.preset).write(name, value, run=folder.name, steps=recipe.steps)


def _base(preset_name: str, knobs: dict, before: Recipe | None) -> tuple[Preset, dict]:
    """The preset, and the knobs on top of it: a run's that is to be resumed; of them the free ones if one was named."""
    from dltutorial.engine.run_folder import FREE_KNOBS

    is_named = before is None or preset_name != "auto"
    kept = {k: v for k, v in vars(before).items() if k in FREE_KNOBS or not is_named} if before else {}
    was = kept.pop("preset", "")
    return preset(preset_name if is_named else was), kept | knobs


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Inside ``with``, a signal that asks the program to end is noted in the list, and the run ends with a checkpoint.

    A batch system warns a job before it takes the nodes away: Slurm by SIGTERM, or by the signal that ``--signal``
    names; a terminal that is closed sends SIGHUP, Ctrl-C SIGINT: a second one ends the program at once. Signals can be
    caught in a program's main thread only; in another one nothing is caught.
    KeyboardInterrupt: instead of Interrupted, where Ctrl-C has ended a run of one rank.
    """
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        if number == signal.SIGHUP:  # nobody can be written to any more
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                if stat.S_ISCHR(os.fstat(stream).st_mode):  # a terminal that has hung up says that it is none
                    os.dup2(nowhere, stream)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            with contextlib.suppress(OSError):  # it has ended `| tee log`, too
                os.write(2, b"\ndltutorial: ends after this update; Ctrl-C again ends it at once\n")
        came.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (*_STOP_SIGNALS, signal.SIGINT):
            if number in _STOP_SIGNALS[:3] or signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's &
                before[number] = signal.signal(number, note)
    try:
        yield came
    except Interrupted as error:
        if came[:1] == [signal.SIGINT] and RankInfo.from_env().world_size == 1:
            raise KeyboardInterrupt(str(error)) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(error: BaseException, info: RankInfo) -> int:
    """Say what happened, if it is this rank's to say; returns the exit status."""
    from dltutorial.engine.distributed import AnotherRankFailed
    from dltutorial.launch import failures

    here = f"rank {info.rank} of {info.world_size}"
    if failures.lost_another_rank(type(error).__name__, str(error)):
        why = re.sub(r"^\[\S*\] ", "", str(error).partition("\n")[0]).partition(". ")[0]  # no place in gloo's source
        status, line = 1, f"{here}: another rank is gone ({why}); see what it or its launcher said, go on with --resume"
    elif isinstance(error, (Interrupted, KeyboardInterrupt)):  # of all ranks alike
        status, line = advice.exit_status(error) or (1, "")
        line = line if info.rank == 0 else ""
    else:
        status, line = advice.exit_status(error) or (1, traceback.format_exc().rstrip())
        line = "" if isinstance(error, AnotherRankFailed) else f"{here}: {line}"
    if line:
        print(f"dltutorial: {line}", file=sys.stderr)
    return status


def end_with_others(info: RankInfo, store: Any, leaving: threading.Event) -> None:
    """End this process soon after another one has failed, whatever it waits for: NCCL waits half an hour for a peer.

    Each also looks whether the next one is still alive: one that was stopped, or whose node hangs, fails by silence.
    """
    failed, beats, heard, last_s, seen_s = False, 0, b"", time.monotonic(), time.monotonic()
    following = (info.rank + 1) % info.world_size
    while not leaving.wait(_WATCH_S):
        if failed:
            line = f"rank {info.rank} of {info.world_size}: another rank has failed; see what it said"
            print(f"dltutorial: {line}", file=sys.stderr, flush=True)
            os._exit(1)
        stopped = threading.Timer(_SILENT_S, _without_store, [info])
        stopped.daemon = True
        stopped.start()
        try:
            failed = store.check(["failed"])
            store.set(f"alive/{info.rank}", str(beats := beats + 1))
            before, heard = heard, store.get(name) if store.check([name := f"alive/{following}"]) else b""
            now_s = time.monotonic()
            if heard != before or now_s - seen_s > 10 * _WATCH_S:  # it is alive; or this one was stopped itself
                last_s = now_s
            elif now_s - last_s > _SILENT_S:
                line = f"rank {following} of {info.world_size} was not heard of for {_SILENT_S:g} s: stopped, or gone"
                print(f"dltutorial: {line}; go on with --resume", file=sys.stderr, flush=True)
                store.set("failed", "")
                failed = True
            seen_s = now_s
        except RuntimeError:  # the store went with rank 0
            failed = True
        finally:
            stopped.cancel()


def _without_store(info: RankInfo) -> NoReturn:
    """End: who holds the store was stopped, or its node hangs, and the store is waited for without a limit."""
    line = f"rank {info.rank} of {info.world_size}: the ranks' store did not answer for {_SILENT_S:g} s"
    print(f"dltutorial: {line}: rank 0, or its launcher, was stopped or is gone; go on with --resume", file=sys.stderr)
    os._exit(1)


def _ignore_signals() -> None:
    """From here on this process ends by itself; a loading process that dies now raises no error any more."""
    if threading.current_thread() is threading.main_thread():
        for number in (*_STOP_SIGNALS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
