"""Notebooks of these tests keep Jupyter's own files in ``artifacts/``."""

import os
from pathlib import Path

import pytest

from dltutorial.teach import kernel

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
os.environ["JUPYTER_DATA_DIR"] = str(ARTIFACTS / "jupyter")
os.environ["IPYTHONDIR"] = str(ARTIFACTS / "ipython")


@pytest.fixture(scope="session")
def preloaded_env():
    with kernel.preloaded(dict(os.environ)) as env:
        yield env
