"""A process that has imported torch, and not the course, and forks: a script's ranks start in 50 ms, not in 3 s each.

One JSON line in, one out: ``{"script": FILE, "argv": […], "ranks": N, "cwd": DIR, "said": FILE}`` runs the script in N
processes with the variables that torchrun gives each (N = 0: in one, without them); answers their exit statuses. When
one fails the others end.
"""

import json
import os
import runpy
import signal
import socket
import sys
import traceback

import torch
import torch._dynamo
import torch.distributed
import torch.nn.parallel


def child(job, variables):
    os.chdir(job["cwd"])
    said = os.open(job["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.environ |= variables
    sys.argv = [job["script"], *job["argv"]]
    sys.path[:1] = [job["cwd"], f"{job['cwd']}/without"]
    status = 1
    try:
        runpy.run_path(job["script"], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # as a process group that is alive may hang at the end of Python


def run(job):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    n, pids = job["ranks"], {}
    for rank in range(max(1, n)):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_PORT": port}
        variables = {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
        pids[os.fork() or child(job, variables if n else {})] = rank
    statuses = [-1] * len(pids)
    while pids:
        pid, status = os.wait()
        statuses[pids.pop(pid)] = status = os.waitstatus_to_exitcode(status)
        for other in pids if status else ():
            os.kill(other, signal.SIGKILL)
    return statuses


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
