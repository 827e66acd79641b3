"""Command lines of ``dltutorial train`` that start quickly; see the nursery."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from serving import free_port

HERE = Path(__file__).parent
STEPS, EVERY = 24, 2
SIZES = {"dim": 16, "depth": 1, "heads": 2, "global-batch-size": 6, "steps": STEPS, "log-every": 5, "eval-every": 12}
KNOBS = [str(word) for knob, value in SIZES.items() for word in (f"--{knob}", value)]


class Nursery:
    """Starts command lines quickly, each in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.said = folder / "said"
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | one_thread | {"DLTUTORIAL_RUNS": str(folder / "runs")},
        )

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, name, data, *argv, trouble=(), env=None, said=None):
        """Begin or resume a run; returns its pid."""
        said = said or self.said
        said.unlink(missing_ok=True)
        line = ["train", "--resume", "--name", name, "--data", str(data), "--device", "cpu"]
        line += ["--checkpoint-every", str(EVERY), *KNOBS, *map(str, argv), "--track"]
        return self.ask(argv=line, said=str(said), trouble=list(trouble), env=env or {})

    def start_ranks(self, world_size, name, data, *argv, trouble=(), data_of=None):
        """The same on several ranks; rank 0 alone has trouble. What rank r prints goes to ``said.r``."""
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        common |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        pids = []
        for rank in range(world_size):
            pid = self.start(
                name,
                (data_of or {}).get(rank, data),
                *argv,
                trouble=trouble if rank == 0 else [],
                said=self.said_by(rank),
                env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            pids.append(pid)
        return pids

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


def kill_at_random(start, wait, finish, life_s, kills, rng):
    """Yields the number of a run after each of so many kills; a run that ends is finished and a new one begins.

    ``start(number)`` begins or resumes a run and returns its pid; ``wait(pid)`` returns its exit status;
    ``finish(number)`` looks at a run that ended; ``life_s`` is about how long one takes.
    """
    killed = number = 0
    while killed < kills:
        pid = start(number)
        time.sleep(rng.uniform(0, 0.5 * life_s))
        os.kill(pid, signal.SIGKILL)  # nobody has waited for it, so the pid still belongs to it
        status = wait(pid)
        if status == -signal.SIGKILL:
            killed += 1
            life_s *= 1.03
            yield number
        else:
            assert status == 0
            finish(number)
            number += 1
            life_s *= 0.7  # the machine has become faster
