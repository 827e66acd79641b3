"""Notebook tests keep to the repository: data, caches and Jupyter's own files go to ``artifacts/``."""

import os
from pathlib import Path

import pytest

from dltutorial import machine
from dltutorial.teach import kernel

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
os.environ["XDG_CACHE_HOME"] = str(ARTIFACTS / "cache")
os.environ["DLTUTORIAL_DATA"] = str(ARTIFACTS / "data")
os.environ["JUPYTER_DATA_DIR"] = str(ARTIFACTS / "jupyter")
os.environ["IPYTHONDIR"] = str(ARTIFACTS / "ipython")


def threads_env() -> dict[str, str]:
    """Beside another worker of pytest, a notebook takes its share of the cores and no more."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return {"OMP_NUM_THREADS": str(max(1, machine.cores() // workers))} if workers > 1 else {}


@pytest.fixture(scope="session")
def preloaded_env():
    """The environment under which the preloaded kernel is there, for all tests of this worker."""
    with kernel.preloaded({**os.environ, **threads_env()}) as env:
        yield env
