"""Years simulated in parallel: one process a core, fed one year at a time.

In: jobs, plain dictionaries. Out: year files, and progress. The processes are ordinary children that run this module
(``python -m dltutorial.data.workers``): nothing of the caller is imported or forked, so it works alike from a
notebook that has used torch, from a script without a main guard, and from standard input. A worker ends when its
standard input closes; so none outlives its parent, whatever becomes of that.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

import dltutorial
from dltutorial.errors import DataError


def run(jobs: list[dict], processes: int, tick: Callable[[], None]) -> None:
    """Do all jobs; calls ``tick`` for every snapshot that any process has stored.

    On an error or an interrupt all processes end at once; years already whole stay.

    Raises:
        DataError: a job failed, or a process died.
    """
    todo, events = deque(jobs), queue.Queue()
    workers = [_start() for _ in range(min(processes, len(jobs)))]
    try:
        for worker, errors in workers:
            threading.Thread(target=_feed, args=(worker, errors, todo, events), daemon=True).start()
        running = len(workers)
        while running:
            event = events.get()
            if isinstance(event, Exception):
                raise event
            if event == "idle":
                running -= 1
            else:
                tick()
    finally:
        for worker, _ in workers:
            worker.terminate()  # politely, so that it removes its partial file
        for worker, errors in workers:
            _await_end(worker, errors)


def _start() -> tuple[subprocess.Popen, IO]:
    """A worker, in a session of its own so that Ctrl-C reaches the parent alone; and where its stderr goes."""
    package = str(Path(dltutorial.__file__).parents[1])
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by _await_end)
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, **threads, "PYTHONPATH": search},
        start_new_session=True,
    )
    return worker, errors


def _await_end(worker: subprocess.Popen, errors: IO) -> None:
    """Wait for a worker that was told to end; use force if it does not."""
    try:
        worker.wait(5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    errors.close()


def _feed(worker: subprocess.Popen, errors: IO, todo: deque, events: queue.Queue) -> None:
    """Give one worker job after job; pass on what it says."""
    try:
        while (job := _next(todo)) is not None:
            worker.stdin.write(json.dumps(job) + "\n")
            worker.stdin.flush()
            said = ""
            while said not in ("done", "error"):
                said, _, rest = worker.stdout.readline().rstrip("\n").partition(" ")
                if said == "snapshot":
                    events.put(said)
                elif said == "error":
                    raise DataError(rest)
                elif said != "done":
                    raise BrokenPipeError
        events.put("idle")
    except DataError as error:
        events.put(error)
    except (OSError, ValueError):
        events.put(DataError(f"a simulating process died: {_last_words(worker, errors)}; run again to go on"))


def _next(todo: deque) -> dict | None:
    """The next job; None if another thread was quicker to take the last one."""
    with contextlib.suppress(IndexError):
        return todo.popleft()
    return None


def _last_words(worker: subprocess.Popen, errors: IO) -> str:
    """The last line a dead worker wrote to stderr, or its exit status."""
    try:
        status = worker.wait(5)
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    except (subprocess.TimeoutExpired, ValueError):
        return "it does not answer"
    return lines[-1] if lines else f"exit status {status}"


def _work() -> None:
    """What a worker does: read jobs from standard input, say on standard output how far it is."""
    jobs: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    out, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is not part of what is said

    def say(*words: str) -> None:
        print(*words, file=out, flush=True)

    from dltutorial.data import years
    from dltutorial.data.plan import Plan

    # An exception, so that half a file is removed. Not before: a library that is being imported may swallow it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for job in iter(jobs.get, None):
        try:
            years.make_years(Plan.from_dict(job["plan"]), job["files"], "cpu", lambda: say("snapshot"))
        except DataError as error:
            say("error", " ".join(str(error).split()))
        else:
            say("done")


def _listen(jobs: queue.SimpleQueue) -> None:
    """Pass on the lines of standard input; when it closes, the parent is gone or wants an end."""
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        _work()
    except SystemExit:
        os._exit(1)  # nothing is left to tidy; the interpreter's own end would wait for the thread that listens
