"""``dltutorial train`` on any number of ranks: alone, under torchrun, under srun.

In: the arguments of ``training.command.train``, and a launcher's variables. Out: the run's folder. Of several ranks
rank 0 prints and writes. When one fails, it says what happened, and all others end within seconds, without a word: so
the reader finds one cause, not one cause among its effects.

Ranks leave by ``os._exit``, after a handshake: taking a process group down, or the store away from ranks that still
use it, can hang or print errors that are none.
"""

import contextlib
import datetime
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from dltutorial import endings, node
from dltutorial.ranks import RankInfo

_POLL_S = 0.5
_TURN_S = 0.5  # rank 0 may speak first
_CAUSE_TURN_S = 2.0  # who only lost another rank lets that one speak
_LINGER_S = 2.0  # how long rank 0 keeps the store for others after a failure
_OF_ALL = (75, 130)  # statuses with which a run ends on all ranks alike
_LAST_S = 60.0  # how long ranks wait for each other after a run


def train(*args: Any, **options: Any) -> Path:
    """Train as ``training.command.train`` does, on all ranks of this job. With several, it ends the process.

    Raises:
        CourseError: as ``training.command.train``; what a launcher says cannot be; a login node.
    """
    node.refuse_on_login("training", "send it to Slurm: sbatch -N 1 slurm/train.sbatch, with the same options")
    info = RankInfo.from_env()
    if info.world_size > 1:  # before torch is loaded: a lost connection is told in one line, not with C++ frames
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from dltutorial.train import command

    if info.world_size == 1:
        return command.train(*args, **options)
    import torch.distributed as dist

    from dltutorial.train.training_ranks import Ranks

    if dist.is_initialized():  # by ``launch``, which also ends it
        return command.train(*args, **options, team=Ranks(info))
    _together(info, *args, **options)


def _together(info: RankInfo, preset_name: str, knobs: dict, **options: Any) -> NoReturn:
    from dltutorial.launch import meeting
    from dltutorial.train import command
    from dltutorial.train.training_ranks import Ranks

    store = meeting.meet(info)
    farewell = Farewell(info, store, meeting.connect_again(info))
    status = 0
    try:
        meeting.make_group(info, store, knobs.get("device", "auto"))
        command.train(preset_name, knobs, **options, team=Ranks(info))
    except BaseException as error:
        _hear_no_signals()
        status, line = _ending(error, info)
        if farewell.may_speak(status, is_effect=_is_effect(error)):
            print(f"dltutorial: {line}", file=sys.stderr)
    leave(info, farewell, status)


def _ending(error: BaseException, info: RankInfo) -> tuple[int, str]:
    """Exit status, and what to print."""
    here = f"rank {info.rank} of {info.world_size}"
    if _is_effect(error):
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        why = re.sub(r"^\[\S*\] ", "", first_line).partition(". ")[0]  # without the place in gloo's source
        return 1, (
            f"{here}: another rank is gone, killed or out of memory ({why}); see what it or its launcher said, "
            "then go on with --resume"
        )
    status, line = endings.of(error) or (1, traceback.format_exc().rstrip())
    return status, line if status in _OF_ALL else f"{here}: {line}"


def _is_effect(error: BaseException) -> bool:
    """Whether this rank only lost another one."""
    from dltutorial.launch import failures

    return failures.lost_another_rank(type(error).__name__, str(error))


class Farewell:
    """How ranks end together: one of them speaks, none waits for one that is gone."""

    def __init__(self, info: RankInfo, store: Any, own_store: Any) -> None:
        """Begin to watch, in a thread with a connection of its own, whether another rank has failed."""
        self._info, self._store = info, store
        self._leaving = threading.Event()
        threading.Thread(target=self._watch, args=(own_store,), daemon=True).start()

    def may_speak(self, status: int, is_effect: bool) -> bool:
        """Whether this rank is the one to say what happened."""
        self._leaving.set()
        time.sleep(_CAUSE_TURN_S if is_effect else _TURN_S if self._info.rank else 0.0)
        try:
            speaks = self._store.add("speakers", 1) == 1
            if speaks:
                self._store.set("ended", str(status))
            return speaks
        except RuntimeError:  # the store went with rank 0
            return True

    def last_words(self, orderly: bool) -> None:
        """Wait until rank 0 has said and written everything; rank 0 waits until nobody needs its store any more."""
        with contextlib.suppress(RuntimeError):
            if self._info.rank == 0:
                self._store.set("last", "1")
                self._store.add("gone", 1)
                self._until_all_gone(_LAST_S if orderly else _LINGER_S)
            else:
                if orderly:
                    self._store.wait(["last"], datetime.timedelta(seconds=_LAST_S))
                self._store.add("gone", 1)

    def _until_all_gone(self, limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while self._store.add("gone", 0) < self._info.world_size and time.monotonic() < end_s:
            time.sleep(0.02)

    def _watch(self, store: Any) -> None:
        """End this process soon after another one has said that it failed, whatever this one is waiting for."""
        with contextlib.suppress(RuntimeError):
            while not store.check(["ended"]):
                time.sleep(_POLL_S)
            status = int(store.get("ended"))
            if not self._leaving.wait(2 * _TURN_S):
                if self._info.rank == 0:
                    store.set("last", "1")
                store.add("gone", 1)
                os._exit(status)


def leave(info: RankInfo, farewell: Farewell, status: int) -> NoReturn:
    """End this process."""
    _hear_no_signals()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    farewell.last_words(orderly=status in (0, *_OF_ALL))
    os._exit(status)


def _hear_no_signals() -> None:
    """The launcher may end all when the first has ended; a loading process that dies now raises an error no more."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
