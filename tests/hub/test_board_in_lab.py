"""TensorBoard in the JupyterLab of ``make lab``, through its jupyter-server-proxy: with the server's token only."""

import os
import re
import secrets
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest
import requests
import tied
from learner import BOARD, Kernel, errors, html

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.xdist_group("hub"), pytest.mark.timeout(300)]


@pytest.fixture
def lab(tmp_path):
    """Address and token of a server with one notebook."""
    shutil.copy(ROOT / "notebooks" / "00_welcome.ipynb", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
    token = secrets.token_urlsafe(16)
    env = os.environ | {name: str(tmp_path / folder) for name, folder in folders.items()} | {"JUPYTER_TOKEN": token}
    words = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0", "--allow-root"]
    with open(tmp_path / "log", "w") as log:
        server = tied.popen([sys.executable, "-m", "jupyterlab", *words], cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        yield wait_until_up(f"http://127.0.0.1:{port}/", server, tmp_path / "log"), token
    finally:
        server.terminate()
        server.wait(60)


def wait_until_up(url, server, log, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if requests.get(f"{url}api", timeout=5).status_code == 200:
                return url
        except requests.ConnectionError:
            time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")


def test_the_frame_is_the_labs_own_page_and_wants_its_token(lab):
    url, token = lab
    headers = {"Authorization": f"token {token}"}
    wanted = {"path": "00_welcome.ipynb", "name": "00", "type": "notebook", "kernel": {"name": "python3"}}
    made = requests.post(f"{url}api/sessions", json=wanted, headers=headers, timeout=100).json()
    kernel = Kernel(url.replace("http", "ws", 1).rstrip("/"), "", token, made["kernel"]["id"])
    outputs = kernel.run(BOARD)
    assert errors(outputs) == []
    (address,) = re.findall(r'<iframe [^>]*src="/([^"]*)"', html(outputs))
    assert re.fullmatch(r"proxy/\d+/[\w-]{32}/", address)
    tags = requests.get(f"{url}{address}data/plugin/scalars/tags", headers=headers, timeout=100).json()
    assert [list(run) for run in tags.values()] == [["train/loss"]]
    assert requests.get(url + address, timeout=100, allow_redirects=False).status_code in (302, 403)
    kernel.close()
    requests.delete(f"{url}api/sessions/{made['id']}", headers=headers, timeout=100)
    port = int(address.split("/")[1])
    deadline = time.monotonic() + 30
    while is_open(port):
        assert time.monotonic() < deadline, "TensorBoard outlives its kernel"
        time.sleep(0.2)


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
