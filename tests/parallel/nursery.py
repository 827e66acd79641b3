"""A process that has imported torch, has computed nothing with it, and forks: a child starts in 50 ms, not in 3 s.

It reads one JSON line and writes one JSON line. ``{"argv": […], "said": FILE, "trouble": [NAME, …], "env": {…}}`` forks
a child that runs the command line ``dltutorial argv`` with its output in a file. The answer is the child's pid.
``{"wait": PID}`` waits until that child has ended. The answer is its exit status, or minus the signal that ended it.
The children end with this process.

Trouble ``slow`` writes a checkpoint to its file piece by piece. Trouble ``["kill", N]`` ends the child by SIGKILL at
the N-th step of writing checkpoints. The steps of one checkpoint are: the eight pieces of the file, before its sync,
before it takes its name, before the temporary name is cleared, before the folder's sync, before an old file is removed
if there is one, and the end.
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

from dltutorial import cli
from dltutorial.engine import checkpoint, command, forecasting, run  # noqa: F401 (what a child will need)
from dltutorial.launch import process_group  # noqa: F401 (what a child will need)

PIECES = 8
PIECE_S = 0.002
_PR_SET_PDEATHSIG = 1


def write_slowly(file, content, after_piece=lambda: time.sleep(PIECE_S)):
    size = -(-len(content) // PIECES)
    with open(file, "wb", buffering=0) as out:
        for first in range(0, len(content), size):
            out.write(content[first : first + size])
            after_piece()


def kill_at(n):
    """Inside ``checkpoint.save``, end this process before its n-th step."""
    save = checkpoint.save
    steps_left = n
    saving = False

    def step():
        nonlocal steps_left
        steps_left -= 1
        if steps_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(act):
        def wrapped(*args, **options):
            if saving:
                step()
            return act(*args, **options)

        return wrapped

    def save_in_steps(*args, **options):
        nonlocal saving
        saving = True
        try:
            return save(*args, **options)
        finally:
            saving = False
            step()

    Path.write_bytes = lambda file, content: write_slowly(file, content, step)
    os.fsync = before(os.fsync)
    Path.replace = before(Path.replace)
    Path.unlink = before(Path.unlink)
    checkpoint.save = save_in_steps


def live(request):
    """What a child does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(request["env"])
    for trouble in request["trouble"]:
        if trouble == "slow":
            Path.write_bytes = write_slowly
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
