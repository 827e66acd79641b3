"""A real JupyterHub with the course's configuration: a learner gets the course by a link and runs a cell."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
import requests
from learner import Learner
from serving import free_port, wait_until_answered

ROOT = Path(__file__).parents[2]
NODE_PROGRAMS = ROOT / ".venv" / "node" / "node_modules" / ".bin"
COMMAND = [sys.executable, "-m", "jupyterhub", "-f", str(ROOT / "hub" / "jupyterhub_config.py")]
CHAPTER = "dltutorial/notebooks/00_welcome.ipynb"
# A cell that asks where it runs, and shows TensorBoard with one event file.
CELL = """
import json, os
from pathlib import Path
from torch.utils.tensorboard import SummaryWriter
from dltutorial.record import board
with SummaryWriter("runs/one") as writer:
    writer.add_scalar("train/loss", 1.0)
board.show(Path("runs/one"))
print(json.dumps([os.getcwd(), os.environ["JUPYTERHUB_USER"], "DLTUTORIAL_HUB_PASSWORD" in os.environ]))
"""

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Hub:
    """A running hub: its address, the password of the class, and its process."""

    url: str
    password: str
    process: psutil.Process


def environment(folder: Path, port: int, password: str) -> dict[str, str]:
    """What an instructor exports before the hub starts."""
    return os.environ | {
        "PATH": os.pathsep.join([os.environ["PATH"], str(NODE_PROGRAMS)]),
        "HOME": str(folder),
        "DLTUTORIAL_HUB_FOLDER": str(folder / "state"),
        "DLTUTORIAL_HUB_PORT": str(port),
        "DLTUTORIAL_HUB_PASSWORD": password,
    }


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    port = free_port(3)  # for the proxy, the hub and the proxy's own interface
    url = f"http://127.0.0.1:{port}"
    password = secrets.token_urlsafe(16)
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(COMMAND, cwd=folder, env=environment(folder, port, password), stdout=log, stderr=log)
    try:
        wait_until_answered(f"{url}/hub/api/", process, folder / "log")
        yield Hub(url, password, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> str:
    """The address of a Git repository with one chapter of the course."""
    course = tmp_path_factory.mktemp("git") / "course"
    (course / "notebooks").mkdir(parents=True)
    shutil.copy(ROOT / "notebooks" / "00_welcome.ipynb", course / "notebooks")
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*author, "commit", "-qm", "The course")):
        subprocess.run(["git", *words], cwd=course, check=True)
    return course.as_uri()


@pytest.fixture(scope="module")
def learner(hub, repository):
    """A learner who has followed the README's link."""
    learner = Learner(hub.url, "ada", hub.password)
    learner.start_server()
    (link,) = re.findall(r"https://HUB(/hub/user-redirect/git-pull\?\S+)", (ROOT / "README.md").read_text())
    page = learner.page.get(hub.url + link.replace("REPOSITORY", quote(repository, safe="")), timeout=60)
    assert page.url.startswith(f"{hub.url}/user/ada/git-pull?")
    assert f"lab/tree/{CHAPTER}" in page.text
    assert learner.pull(repository, "dltutorial")[-1]["phase"] == "finished"
    return learner


def test_a_learner_runs_a_cell_of_the_course_and_sees_tensorboard(learner):
    outputs = learner.run_cell(CHAPTER, CELL)

    assert not [output for output in outputs if "ename" in output], outputs
    folder, user, knows_password = json.loads("".join(output.get("text", "") for output in outputs))
    assert folder.endswith("ada/dltutorial/notebooks")
    assert user == "ada"
    assert not knows_password
    html = "".join(output["data"].get("text/html", "") for output in outputs if "data" in output)
    (address,) = re.findall(r'<iframe [^>]*src="/(user/ada/proxy/\d+/[\w-]{32}/)', html)
    assert "<title>TensorBoard</title>" in learner.request(address).text


def test_only_the_learners_own_token_opens_the_server(hub, learner):
    other = Learner(hub.url, "bob", hub.password)
    guess = Learner(hub.url, "ada", "not the password")
    assert guess.login.status_code == 403
    assert learner.request("user/ada/api/contents").status_code == 200
    assert other.request("user/ada/api/contents").status_code in (403, 404)
    assert requests.get(f"{hub.url}/user/ada/api/contents", timeout=60).status_code == 403


def test_everything_listens_on_the_loopback(hub, learner):
    processes = [hub.process, *hub.process.children(recursive=True)]
    connections = [connection for process in processes for connection in process.net_connections("inet")]
    listening = [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]
    assert len(listening) >= 4  # the proxy, its own interface, the hub, the learner's server
    assert set(listening) == {"127.0.0.1"}
