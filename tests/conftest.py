"""What all tests share: caches and runs stay inside the repository, and what may not be skipped."""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

import encodable
import groups
import pytest
from measurements import Tally
from second_try import SecondTry, Turns

sys.modules.setdefault("rfc3987_syntax", None)  # as dltutorial.course.execute.quick_imports, and as early as can be
ROOT = Path(__file__).parents[1]
ARTIFACTS = ROOT / "artifacts"
BEGAN = time.time()
# Set here, once, for this process and all it starts: no test reads or writes the caches of the person who runs it.
os.environ["XDG_CACHE_HOME"] = str(ARTIFACTS / "cache")
os.environ["XDG_CONFIG_HOME"] = str(ARTIFACTS / "config")
os.environ["DLTUTORIAL_DATA"] = str(ARTIFACTS / "data")
os.environ["JUPYTER_DATA_DIR"] = str(ARTIFACTS / "jupyter")
os.environ["IPYTHONDIR"] = str(ARTIFACTS / "ipython")
# A shell that starts the tests in the background has SIGINT ignored, and so would every process they start.
with contextlib.suppress(ValueError):  # not in the main thread
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests run side by side: each takes its share of the cores, and threads that wait give theirs away.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // _WORKERS)))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["MPLBACKEND"] = os.environ.get("MPLBACKEND", "agg")
for name in (
    *("DLTUTORIAL_NODE", "DLTUTORIAL_PRESET", "DLTUTORIAL_RECORDS", "DLTUTORIAL_RUNS"),
    *("WANDB_MODE", "JPY_SESSION_NAME", "JPY_PARENT_PID", "JUPYTERHUB_SERVICE_PREFIX"),
):
    os.environ.pop(name, None)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_slurm() -> bool:
    from dltutorial.launch import pocket

    return pocket.missing() is None


def _has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def _has_mpi() -> bool:
    from dltutorial.comm import mpi

    return mpi.missing() is None


def _has_dali() -> bool:
    return importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None


def _has_hub_proxy() -> bool:
    places = os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".venv" / "node" / "node_modules" / ".bin")])
    return bool(shutil.which("configurable-http-proxy", path=places))


NEEDS = {
    "browser": (lambda: bool(shutil.which("chromium")), "Chromium is not installed (apt-get install chromium)"),
    "slurm": (_has_slurm, "Slurm is not installed (apt-get install slurm-wlm munge)"),
    "ray": (_has_ray, "Ray is not installed (.venv/bin/pip install -c constraints.txt -e '.[tune]')"),
    "mpi": (_has_mpi, "MPI is not installed (.venv/bin/pip install -c constraints.txt -e '.[mpi]')"),
    "dali": (_has_dali, "DALI is not installed (.venv/bin/pip install -c constraints.txt -e '.[dali]')"),
    "gpu": (_has_gpu, "no CUDA device here"),
    "hub": (_has_hub_proxy, "no configurable-http-proxy (npm install --prefix .venv/node configurable-http-proxy@5)"),
}


# Whole folders that carry a marker: what `.ci/run` adds to `make test`, and what runs before a release only.
FOLDER_MARKERS = {"book": "ci", "browser": "ci", "fresh": "ci", "hub": "ci", "slurm": "ci", "fuzz": "nightly"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in the folders of ``FOLDER_MARKERS`` carry that marker, as single tests elsewhere do."""
    for item in items:
        marker = FOLDER_MARKERS.get(item.path.relative_to(ROOT / "tests").parts[0])
        if marker:
            item.add_marker(marker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs hardware or a package that is not here, unless DLTUTORIAL_REQUIRE names it: then fail."""
    required = os.environ.get("DLTUTORIAL_REQUIRE", "").split(",")
    for name, (is_there, reason) in NEEDS.items():
        if item.get_closest_marker(name) and not is_there():
            (pytest.fail if name in required else pytest.skip)(reason)


_TURNS = Turns(ARTIFACTS)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SecondTry(_TURNS))
    config.pluginmanager.register(groups)
    config.pluginmanager.register(encodable)
    if not hasattr(config, "workerinput"):  # no worker of pytest-xdist
        config.pluginmanager.register(Tally())


def pytest_terminal_summary(terminalreporter) -> None:
    """What tests have told (the property ``told``); how long those in a browser took, and where their pictures are."""
    stats = terminalreporter.stats.values()
    reports = [report for some in stats for report in some if isinstance(report, pytest.TestReport)]
    for report in reports:
        if report.when == "call" and (told := dict(report.user_properties).get("told")):
            terminalreporter.section(told, sep="-")
    mine = [r for r in reports if r.nodeid.startswith("tests/browser/")]
    pictures = [file for file in (ARTIFACTS / "browser").glob("*.png") if file.stat().st_mtime >= BEGAN]
    if pictures and mine:
        took_s = max(report.stop for report in mine) - min(report.start for report in mine)
        terminalreporter.section(f"browser tests: {took_s:.0f} s; their pictures: {pictures[0].parent}", sep="-")


@pytest.fixture(scope="session")
def threads_env() -> dict[str, str]:
    """Beside another worker of pytest, a notebook takes its share of the cores and no more."""
    return {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]} if _WORKERS > 1 else {}


@pytest.fixture
def alone():
    """``with alone():`` no other test runs meanwhile, so that times can be trusted."""

    @contextlib.contextmanager
    def block():
        _TURNS.leave()
        _TURNS.enter(fcntl.LOCK_EX)
        try:
            yield
        finally:
            _TURNS.leave()
            _TURNS.enter(fcntl.LOCK_SH)

    return block


@pytest.fixture(scope="session")
def browser():
    """Chromium, one for all tests of this worker: Playwright starts only once in a process."""
    from playwright.sync_api import expect, sync_playwright

    quiet = ("background-networking", "component-update", "sync", "dev-shm-usage", "gpu")
    flags = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        yield chromium
        chromium.close()


@pytest.fixture(autouse=True)
def _ctrl_c_as_it_was(request: pytest.FixtureRequest):
    """A test that leaves Ctrl-C to something else is named, and the next one has it back."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if signal.getsignal(signal.SIGINT) is not before:
        warnings.warn(f"{request.node.nodeid} left another answer to Ctrl-C", stacklevel=1)
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _own_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and records of a test go to its own folder."""
    monkeypatch.setenv("DLTUTORIAL_RUNS", str(tmp_path / "runs"))
