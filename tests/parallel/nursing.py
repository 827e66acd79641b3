"""Command lines of ``dltutorial train`` that start quickly and end badly; see the nursery."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
STEPS, EVERY = 24, 2
LAUNCHER_S = 5.0
SIZES = {"dim": 16, "depth": 1, "heads": 2, "global-batch-size": 6, "steps": STEPS, "log-every": 5, "eval-every": 12}
KNOBS = [str(word) for knob, value in SIZES.items() for word in (f"--{knob}", value)]


class Nursery:
    """Starts command lines quickly, each in a process of its own."""

    def __init__(self, folder):
        self.folder, self.said = folder, folder / "said"
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DLTUTORIAL_RUNS": str(folder / "runs")}
        one["TORCH_CPP_LOG_LEVEL"] = "ERROR"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | one,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup ignores it
        )  # fmt: skip

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, name, data, *argv, trouble=(), env=None, said=None, how=("--resume",)):
        """Begin or go on with a run, or as ``how`` says; returns its pid."""
        said = said or self.said
        said.unlink(missing_ok=True)
        line = ["train", *how, "--name", name, "--data", str(data), "--device", "cpu"]
        line += ["--checkpoint-every", str(EVERY), *KNOBS, *map(str, argv), "--track"]
        return self.ask(argv=line, said=str(said), trouble=list(trouble), env=env or {})

    def start_ranks(
        self, world_size, name, data, *argv, trouble=(), data_of=None, env=None, how=("--resume",), victim=0
    ):
        """The same on several ranks; only the victim has trouble. What rank r says goes to ``said.r``."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        size = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        return [
            self.start(
                name, (data_of or {}).get(rank, data), *argv,
                trouble=trouble if rank == victim else [], said=self.said_by(rank), how=how,
                env=meet | size | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (env or {}),
            )
            for rank in range(world_size)
        ]  # fmt: skip

    def said_by(self, rank):
        return self.folder / f"said.{rank}"

    def wait(self, pid):
        """The exit status of a child, or minus the signal that ended it."""
        return self.ask(wait=pid)

    def train(self, name, data, *argv, **options):
        return self.wait(self.start(name, data, *argv, **options))

    def train_ranks(self, world_size, *args, **options):
        return [self.wait(pid) for pid in self.start_ranks(world_size, *args, **options)]

    def run(self, name):
        return self.folder / "runs" / name

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=150)


def wait_for(condition, said):
    """Until something is seen of a run that is under way."""
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.005)


@contextlib.contextmanager
def launcher(pid):
    """A rank that still waits for others to come is ended by what started it, once another one has died."""
    timer = threading.Timer(LAUNCHER_S, os.kill, (pid, signal.SIGKILL))
    timer.start()
    yield
    timer.cancel()


def kill_at_random(start, wait, finish, life_s, kills, rng=None):
    """As many lives as it takes for so many kills; a run that ends is finished and a new one begun.

    ``start(number)`` begins or goes on with a run and gives pids, of which one is killed; ``wait(pid)`` gives its exit
    status; ``finish(number)`` looks at a run that ended; ``life_s`` is about how long one takes.
    """
    rng = rng or random.Random()
    done = number = 0
    while done < kills:
        pids = start(number)
        time.sleep(rng.uniform(0, 0.5 * life_s))
        victim = rng.choice(pids)
        os.kill(victim, signal.SIGKILL)  # nobody has waited for it, so the pid is still its
        statuses = {}
        for pid in sorted(pids, key=lambda pid: pid != victim):
            with launcher(pid) if statuses.get(victim) == -signal.SIGKILL else contextlib.nullcontext():
                statuses[pid] = wait(pid)
        if statuses[victim] == -signal.SIGKILL:
            done, life_s = done + 1, 1.03 * life_s
            yield number
            continue
        assert set(statuses.values()) == {0}
        finish(number)
        life_s, number = 0.7 * life_s, number + 1  # the machine is quicker now
