"""JupyterLab as ``make lab`` starts it, on a copy of the course, and Chromium to look at it."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from notebook_page import NotebookPage, end_kernels
from serving import free_port, wait_until_answered

ROOT = Path(__file__).parents[2]
# Every cell in the page, not just those in sight.
SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"}}


@dataclass(frozen=True)
class Lab:
    """A running server: its folder, address, token and process."""

    folder: Path
    url: str
    token: str
    pid: int


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Starts on a free port. Its token is the one that Jupyter makes up."""
    place = tmp_path_factory.mktemp("lab")
    course = place / "course"
    for name in ("notebooks", "exercises"):
        shutil.copytree(ROOT / name, course / name, ignore=shutil.ignore_patterns("runs", ".ipynb_checkpoints"))
    shutil.copy(ROOT / "README.md", course)
    command = [*lab_command(), "--no-browser", f"--port={free_port()}", f"--ServerApp.root_dir={course}"]
    with open(place / "log", "w") as log:
        server = subprocess.Popen(command, cwd=course, env=lab_environment(place), stdout=log, stderr=log)
    try:
        yield wait_until_up(server, place)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def lab_command() -> list[str]:
    """What ``make lab`` runs, with this Python."""
    said = subprocess.run(["make", "-n", "lab", "ARGS="], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in said.splitlines() if "jupyter lab" in line]
    words = shlex.split(line)
    return [sys.executable, "-m", "jupyterlab", *words[words.index("lab") + 1 :]]


def lab_environment(place: Path) -> dict[str, str]:
    """Folders of its own; the smoke preset; matplotlib's backend left to the kernel."""
    for name, values in SETTINGS.items():
        file = place / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
        "DLTUTORIAL_RUNS": "runs",
    }
    env = {name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "JPY_SESSION_NAME")}
    extra = {"DLTUTORIAL_PRESET": "smoke", "PYTHONSTARTUP": str(ROOT / "hub" / "startup.py")}
    extra["JUPYTER_CONFIG_PATH"] = str(ROOT / "hub")
    return env | {name: str(place / folder) for name, folder in folders.items()} | extra


def wait_until_up(server: subprocess.Popen, place: Path, seconds: float = 200) -> Lab:
    """Wait until the server answers. Its file about itself appears shortly before the server listens."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        for file in (place / "runtime").glob("jpserver-*.json"):
            try:
                about = json.loads(file.read_text())
            except ValueError:  # being written
                continue
            wait_until_answered(f"{about['url']}api/status", server, place / "log", about["token"])
            return Lab(place / "course", about["url"], about["token"], server.pid)
        time.sleep(0.05)
    pytest.fail(f"JupyterLab did not start: {(place / 'log').read_text()[-2000:]}")


@pytest.fixture
def page(browser, lab):
    """A window; anything it asks of another machine fails the test."""
    window = browser.new_page(viewport={"width": 1300, "height": 900})
    window.set_default_timeout(150_000)
    elsewhere = []
    window.on("request", lambda request: elsewhere.append(request.url) if _is_elsewhere(request.url, lab) else None)
    yield window
    window.close()
    end_kernels(lab)
    assert not elsewhere


def _is_elsewhere(url: str, lab: Lab) -> bool:
    return not url.startswith((lab.url, lab.url.replace("http", "ws", 1), "data:", "blob:"))


@pytest.fixture
def open_notebook(page, lab):
    """``open_notebook(path)``: a notebook of the server's folder, open in JupyterLab with an idle kernel."""
    return lambda path: NotebookPage(page, lab, path)
