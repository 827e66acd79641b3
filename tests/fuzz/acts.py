"""What is done to hostile files, and the process that does it: it has imported the course, and forks for each.

One JSON line in, ``{"act": NAME, "args": […]}``, one out: how the child ended, what came of it, what it said. A child
may take so much processor time, so much more memory, and write so much to a file; a child that waits is ended.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # the first optimizer would import it
import zarr  # noqa: F401 (what a child will need)
from torch import nn

from dltutorial import cli
from dltutorial.config import Recipe
from dltutorial.course import bench, classroom, doctor, exercise_status, report, runner  # noqa: F401 (as above)
from dltutorial.data import store, weather  # noqa: F401 (as above)
from dltutorial.errors import CourseError
from dltutorial.launch import pocket
from dltutorial.train import checkpoint, command, run  # noqa: F401 (as above)
from dltutorial.train.loop import TrainState
from dltutorial.train.task import Task

CPU_S, WALL_S, MORE_BYTES, FILE_BYTES = 20, 240, 3 * 2**30, 64 * 2**20
_PR_SET_PDEATHSIG = 1


def open_data(folder):
    """A split is what its attributes promise, or it is refused; so is the whole data set: (shape, summary), and why."""
    told = []
    for act in (open_split, store.validate):
        try:
            told.append(act(Path(folder)))
        except CourseError as error:
            told += [None] * (2 - len(told)) + [str(error)]
            return told
    return [*told, ""]


def open_split(folder):
    found = store.open_split(folder, "train")
    C, H, W = found.shape
    assert len(found.files) == len(found.snapshots) > 0
    assert min(C, H, W, *found.snapshots) > 0
    assert len(found.channel_names) == len(found.channel_units) == C
    assert all(isinstance(text, str) for text in (*found.channel_names, *found.channel_units, found.geometry))
    assert found.means_1C11.shape == found.stds_1C11.shape == (1, C, 1, 1)
    climate = [] if found.time_means_1CHW is None else [found.time_means_1CHW]
    assert all(x.shape == (1, C, H, W) for x in climate)
    for x in (found.means_1C11, found.stds_1C11, *climate):
        assert x.dtype == np.float32
        assert np.isfinite(x).all()
    assert (found.stds_1C11 > 0).all()
    assert found.snapshot_s is None or np.isfinite(found.snapshot_s)
    assert store.read_sample(found.files[0], 0).shape[0] == C
    return list(found.shape)


RECIPE = Recipe(optimizer="adamw", steps=9, warmup_steps=1, device="cpu")


def live_parts():
    """Of a run of two weights and a bias."""
    torch.manual_seed(0)
    return TrainState(Task(nn.Linear(2, 1), None, lambda model, x, y: (model(x) - y).square().mean()), RECIPE)


def save_checkpoint(folder, step):
    state = live_parts()
    for _ in range(2):
        state.losses.append(state.update(torch.ones(3, 2), torch.ones(3, 1)))
    state.step = step
    return str(checkpoint.save(checkpoint.take(state, RECIPE, "data"), Path(folder)))


def newest_checkpoint(folder):
    """The newest whole one goes back into the run."""
    found = checkpoint.newest(Path(folder))
    if found is None:
        return None
    state = live_parts()
    checkpoint.restore(found, state)
    state.update(torch.ones(3, 2), torch.ones(3, 1))
    return state.step


def command_line(argv):
    """The exit status; an error that nobody foresaw is raised."""
    try:
        return cli.main(argv)
    except SystemExit as leaving:
        return leaving.code


def cluster_of(name):
    found = pocket.status(name)
    return found and [found.name, list(found.nodes), list(found.faults)]


ACTS = (open_data, save_checkpoint, newest_checkpoint, command_line, cluster_of)


def live(request):
    """What a child does; returns what is told of it."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = {resource.RLIMIT_CPU: CPU_S, resource.RLIMIT_AS: here_bytes + MORE_BYTES, resource.RLIMIT_FSIZE: FILE_BYTES}
    for limit, value in most.items():
        resource.setrlimit(limit, (value, value))
    for name, value in request.get("env", {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    os.chdir(request.get("cwd", "."))
    sys.stdout.reconfigure(encoding=request.get("encoding", "utf-8"))
    sys.stderr.reconfigure(encoding=request.get("encoding", "utf-8"), errors="backslashreplace")
    try:
        (act,) = [act for act in ACTS if act.__name__ == request["act"]]
        told = {"value": act(*request["args"])}
        sys.stdout.flush()
    except CourseError as error:
        told = {"refused": str(error)}
    except BaseException:
        told = {"raised": traceback.format_exc()}
    return told


def fork(request):
    """How a child ended, and what it told and said."""
    told, out, err = files = [os.memfd_create(name) for name in ("told", "out", "err")]
    pid = os.fork()
    if not pid:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.write(told, json.dumps(live(request)).encode())
        finally:
            os._exit(0)
    handle = os.pidfd_open(pid)
    in_time = bool(select.select([handle], [], [], WALL_S)[0])
    os.killpg(pid, signal.SIGKILL) if not in_time else None
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = [os.pread(file, 2**20, 0).decode("utf-8", "replace") for file in files]
    for file in (*files, handle):
        os.close(file)
    return {"ended": status if in_time else None, "out": said[1], "err": said[2]} | json.loads(said[0] or "{}")


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)
    os._exit(0)  # taking torch down in good order would take seconds


if __name__ == "__main__":
    main()
