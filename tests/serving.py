"""Servers that tests start: a port for them, and waiting until they answer."""

import random
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests


def free_port(n_ports: int = 1) -> int:
    """Choose ports for a server that is about to start.

    The ports lie below the range from which Linux takes a port for a connection or for a server without a port of its
    own. Therefore no other program gets one of them before the server listens there.

    Args:
        n_ports: the number of ports, in a row.

    Returns:
        The first of these ports.
    """
    choose = random.SystemRandom()  # a test may have seeded the generator of the module
    while True:
        first = choose.randrange(20_000, 29_000)
        try:
            for port in range(first, first + n_ports):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


def wait_until_answered(
    url: str, process: subprocess.Popen, log: Path | None = None, token: str = "", timeout_s: float = 240
) -> None:
    """Ask a server until it answers with status 200. JupyterLab shows its address before it listens there.

    Args:
        url: an address of the server.
        process: the process that runs the server. If this process has ended, the test fails at once.
        log: the file into which the server writes its messages.
        token: the server's token, if it needs one.
        timeout_s: after this time the test fails.
    """
    deadline_s = time.monotonic() + timeout_s
    problem = "no answer"
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            answer = requests.get(url, headers={"Authorization": f"token {token}"} if token else {}, timeout=60)
        except (requests.ConnectionError, requests.Timeout) as error:
            problem = type(error).__name__
        else:
            if answer.status_code == 200:
                return
            problem = f"status {answer.status_code}"
        time.sleep(0.1)
    last_lines = log.read_text()[-3000:] if log else ""
    pytest.fail(f"no server at {url}: {problem}; exit status of its process: {process.poll()}\n{last_lines}")
