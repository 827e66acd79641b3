"""A process that has imported torch, has computed nothing with it, and forks: a child starts in 50 ms, not in 3 s.

One JSON line in, one out. ``{"argv": […], "said": FILE, "trouble": [NAME, …], "env": {…}}`` forks a child that runs
the command line ``dltutorial argv`` with its output in a file, and answers its pid; ``{"wait": PID}`` waits until it
has ended and answers its exit status, or minus the signal that ended it. The children end with this process.

Troubles: ``slow`` makes a checkpoint's bytes reach its file bit by bit; ``slow to close`` delays an interrupted run's
status; ``["kill", N]`` ends the child by SIGKILL at the N-th step of writing checkpoints: the eight pieces of the file,
before its sync, before it takes its name, before the temporary name is cleared, before the folder's sync, before an
old file is removed if there is one, the end; ``["kill in overwriting", N]`` at the N-th change of the folder that is
overwritten: its rename, the new one, the end; ``["kill in removing", N]`` at the N-th file or folder of the old one.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer would import it

from dltutorial import cli, paths
from dltutorial.launch import process_group  # noqa: F401 (what a child will need)
from dltutorial.train import (  # noqa: F401 (what a child will need)
    checkpoint,
    command,
    forecasting,
    run,
    run_folder,
)

PIECES = 8
PIECE_S = 0.002
_PR_SET_PDEATHSIG = 1


def write_slowly(file, content, after_piece=lambda: time.sleep(PIECE_S)):
    size = -(-len(content) // PIECES)
    with open(file, "wb", buffering=0) as out:
        for first in range(0, len(content), size):
            out.write(content[first : first + size])
            after_piece()


class Kill:
    """Ends this process the N-th time it is called."""

    def __init__(self, n):
        self.left = n

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at(n, module=checkpoint, name="save", steps=((os, "fsync"), (Path, "replace"), (Path, "unlink"))):
    """Inside a function, before one of the calls that are its steps, or at its end."""
    kill, acts, inside = Kill(n), getattr(module, name), []
    if module is checkpoint:
        Path.write_bytes = lambda file, content: write_slowly(file, content, kill)

    def before(act):
        def wrapped(*args, **options):
            if inside:
                kill()
            return act(*args, **options)

        return wrapped

    def outer(*args, **options):
        inside.append(True)
        try:
            return acts(*args, **options)
        finally:
            inside.pop()
            kill()

    for place, step in steps:
        setattr(place, step, before(getattr(place, step)))
    setattr(module, name, outer)


def close_slowly():
    write_text = paths.write_text

    def late(file, text, *more):
        time.sleep(1.0 if "interrupted" in text else 0.0)
        write_text(file, text, *more)

    paths.write_text = late


def live(request):
    """What a child does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(out, number)
    for name, value in request.get("env", {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    for trouble in request.get("trouble", []):
        if trouble == "slow":
            Path.write_bytes = write_slowly
        elif trouble == "slow to close":
            close_slowly()
        elif trouble[0] == "kill in overwriting":
            kill_at(trouble[1], run_folder, "_replace", ((Path, "rename"), (Path, "mkdir")))
        elif trouble[0] == "kill in removing":
            kill_at(trouble[1], run_folder, "_remove", ((Path, "unlink"), (Path, "rmdir")))
        else:
            kill_at(trouble[1])
    return cli.main(request["argv"])


def fork(request):
    pid = os.fork()
    if pid:
        return pid
    status = 99
    try:
        status = live(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(ended(request["wait"]) if "wait" in request else fork(request)), flush=True)
    os._exit(0)  # taking torch down in good order would take seconds


if __name__ == "__main__":
    main()
