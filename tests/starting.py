"""Start ``dltutorial train`` in processes of their own. A fork server has imported the trainer, so a start is quick."""

import multiprocessing
import os
import sys
from pathlib import Path

from serving import free_port
from waiting import wait_for

from dltutorial import cli

STEPS = 24
WORDS = ["--preset", "smoke", "--global-batch-size", "4", "--steps", str(STEPS), "--checkpoint-every", "2", "--track"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["dltutorial.train"])


class Training:
    """One run of the command line on one or several ranks.

    Attributes:
        runs: the folder of the runs.
        processes: one for each rank.
    """

    def __init__(self, folder, data, *words, ranks=1):
        """Start the ranks.

        Args:
            folder: for the runs, and for what the ranks print.
            data: the data set.
            words: more options.
            ranks: how many.
        """
        self._folder = folder
        self.runs = folder / "runs"
        environment = {"DLTUTORIAL_RUNS": str(self.runs), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if ranks > 1:
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            environment |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        arguments = [*WORDS, "--data", str(data), *map(str, words)]
        self.processes = []
        for rank in range(ranks):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            process = _context.Process(target=_train, args=(arguments, environment | of_rank, self._output(rank)))
            process.start()
            self.processes.append(process)

    def wait(self):
        """Return the exit status of each rank, or minus the signal that ended it."""
        for process in self.processes:
            process.join(240)
        return [process.exitcode for process in self.processes]

    def printed(self, rank=0):
        """Return what a rank has printed."""
        return self._output(rank).read_text()

    def folder(self):
        """Return the folder of the newest run, once there is one."""
        wait_for(lambda: list(self.runs.glob("train-*/config.json")))
        return max(self.runs.glob("train-*"))

    def _output(self, rank):
        return self._folder / f"output-{rank}.txt"


def _train(arguments, environment, output: Path):
    """Be one rank."""
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (lives as long as the process)
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.exit(cli.main(["train", *arguments]))
