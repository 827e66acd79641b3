"""A real JupyterHub on the loopback with its real proxy, as ``hub/jupyterhub_config.py`` makes it."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import requests
import tied
from learner import Learner

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".venv" / "node" / "node_modules" / ".bin"


@dataclass(frozen=True)
class Hub:
    """A running hub: its address, the class's password, its folder and process."""

    url: str
    password: str
    folder: Path
    process: psutil.Process

    def learner(self, name: str) -> Learner:
        """Somebody who logs in."""
        return Learner(self.url, name, self.password)

    def processes(self) -> list[psutil.Process]:
        """The hub, its proxy, the learners' servers and kernels."""
        return [self.process, *self.process.children(recursive=True)]


def environment(folder: Path, port: int, password: str) -> dict[str, str]:
    """What an instructor would export. The smoke preset, and no folder of the person who runs the tests."""
    kept = ("PATH", "PYTHONPATH", "LANG", "TMPDIR", "OMP_NUM_THREADS", "DLTUTORIAL_DATA")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env["PATH"] = os.pathsep.join([env["PATH"], str(NODE)])
    own = {"HOME": str(folder), "DLTUTORIAL_HUB_FOLDER": str(folder / "state"), "DLTUTORIAL_PRESET": "smoke"}
    return env | own | {"DLTUTORIAL_HUB_PORT": str(port), "DLTUTORIAL_HUB_PASSWORD": password}


def command() -> list[str]:
    """What the configuration's first lines say, with this Python."""
    return [sys.executable, "-m", "jupyterhub", "-f", str(ROOT / "hub" / "jupyterhub_config.py")]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Hub]:
    """A hub for the length of the block; no process of it is left."""
    password = secrets.token_urlsafe(16)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(folder / "log", "w") as log:
        started = tied.popen(command(), cwd=folder, env=environment(folder, port, password), stdout=log, stderr=log)
    found = Hub(f"http://127.0.0.1:{port}", password, folder, psutil.Process(started.pid))
    try:
        wait_until_up(found, started)
        yield found
    finally:
        left = end(found, started)
    assert not left, left


def end(hub: Hub, started: subprocess.Popen) -> list[psutil.Process]:
    """Ask the hub to end, which ends its proxy and servers; those that outlived it, killed by now."""
    family = hub.processes() if started.poll() is None else []
    started.terminate()
    try:
        started.wait(60)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
    _, left = psutil.wait_procs(family, 10)
    for process in left:
        process.kill()
    return left


def wait_until_up(hub: Hub, started: subprocess.Popen, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and started.poll() is None:
        try:
            if requests.get(f"{hub.url}/hub/api/", timeout=5).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.1)
    pytest.fail(f"JupyterHub did not start: {(hub.folder / 'log').read_text()[-3000:]}")
