"""Without Slurm, torchrun alone restarts a run that was warned by a signal, and the run goes on."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from waiting import wait_for

from dltutorial import paths

TINY = ["--preset", "smoke", "--dim", "32", "--depth", "1", "--steps", "200", "--log-every", "1", "--eval-every", "0"]
CPU = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


@pytest.mark.ci
def test_a_warned_run_goes_on_by_itself(tmp_path):
    words = ["bash", "-c", 'trap "" USR1; exec "$@"', "ranks", sys.executable, "-m", "torch.distributed.run"]
    words += ["--standalone", "--max-restarts=1", "--nproc-per-node=2"]
    words += ["-m", "dltutorial", "train", "--name", "run", "--resume", *TINY]
    log, progress = tmp_path / "log", paths.runs_dir() / "run" / "progress.jsonl"
    with open(log, "w") as out:
        run = subprocess.Popen(words, env=os.environ | CPU, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_for(lambda: (progress.exists() and progress.read_text()) or run.poll() is not None, within_s=200)
        for rank in psutil.Process(run.pid).children(recursive=True):
            rank.send_signal(signal.SIGUSR1)
        assert run.wait(200) == 0, log.read_text()
    finally:
        run.terminate()
        run.wait()
    assert log.read_text().count("run goes on after") == 1
    assert [json.loads(line)["step"] for line in progress.read_text().splitlines()] == list(range(1, 201))
