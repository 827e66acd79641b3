"""What all tests share: caches and runs stay inside the repository, markers, and what may not be skipped."""

import importlib.util
import os
import shutil
import signal
from pathlib import Path

import pytest
from folders import ARTIFACTS, ROOT, skip_unless_required

# A shell that starts the tests in the background ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# These variables are set here for this process and all that it starts, so no test uses the caches of the user.
os.environ["XDG_CACHE_HOME"] = str(ARTIFACTS / "cache")
os.environ["XDG_CONFIG_HOME"] = str(ARTIFACTS / "config")
os.environ["DLTUTORIAL_DATA"] = str(ARTIFACTS / "data")
os.environ["JUPYTER_DATA_DIR"] = str(ARTIFACTS / "jupyter")
os.environ["IPYTHONDIR"] = str(ARTIFACTS / "ipython")
# Tests run side by side, so each takes its share of the cores, and threads that wait release their core.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // _WORKERS)))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["MPLBACKEND"] = os.environ.get("MPLBACKEND", "agg")
for name in (
    "DLTUTORIAL_NODE",
    "DLTUTORIAL_PRESET",
    "DLTUTORIAL_RECORDS",
    "DLTUTORIAL_RUNS",
    "JPY_SESSION_NAME",
    "JPY_PARENT_PID",
    "JUPYTERHUB_SERVICE_PREFIX",
    "WANDB_MODE",
):
    os.environ.pop(name, None)

# Whole folders that carry a marker: what `.ci/run` adds to `make test`, and what runs before a release only.
FOLDER_MARKERS = {"book": "ci", "browser": "ci", "fresh": "ci", "hub": "ci", "slurm": "ci", "fuzz": "nightly"}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_slurm() -> bool:
    from dltutorial.launch import pocket

    return pocket.missing() is None


def _has_dali() -> bool:
    return importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None


def _has_hub_proxy() -> bool:
    places = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".venv" / "node" / "node_modules" / ".bin")])
    return shutil.which("configurable-http-proxy", path=places) is not None


NEEDS = {
    "browser": (lambda: shutil.which("chromium") is not None, "Chromium is not installed (apt-get install chromium)"),
    "slurm": (_has_slurm, "Slurm is not installed (apt-get install slurm-wlm munge)"),
    "ray": (
        lambda: importlib.util.find_spec("ray") is not None,
        "Ray is not installed (.venv/bin/pip install -c constraints.txt -e '.[tune]')",
    ),
    "dali": (_has_dali, "DALI is not installed (.venv/bin/pip install -c constraints.txt -e '.[dali]')"),
    "gpu": (_has_gpu, "no CUDA device here"),
    "hub": (_has_hub_proxy, "no configurable-http-proxy (npm install --prefix .venv/node configurable-http-proxy@5)"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in the folders of ``FOLDER_MARKERS`` carry that marker, as single tests elsewhere do."""
    for item in items:
        marker = FOLDER_MARKERS.get(item.path.relative_to(ROOT / "tests").parts[0])
        if marker:
            item.add_marker(marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs hardware or a package that is not here."""
    for name, (is_there, reason) in NEEDS.items():
        if item.get_closest_marker(name) and not is_there():
            skip_unless_required(name, reason)


@pytest.fixture(scope="session")
def browser():
    """Chromium, one for all tests of this worker."""
    from playwright.sync_api import expect, sync_playwright

    disabled = ("background-networking", "component-update", "sync", "dev-shm-usage", "gpu")
    flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in disabled)]
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags, timeout=150_000)
        yield chromium
        chromium.close()


@pytest.fixture(autouse=True)
def _own_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and records of a test go to its own folder."""
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path / "runs"))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete, valid data set. Tests read it and do not change it."""
    from tiny_data import write_tiny_data

    return write_tiny_data(tmp_path_factory.mktemp("data") / "tiny")
