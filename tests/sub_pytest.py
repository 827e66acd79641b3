"""Tests of tests: a pytest of its own, in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
LEFT_OUT = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST")


def run(folder: Path, conftest: str, *options: str, **tests: str) -> str:
    """Run pytest over files ``NAME.py`` of the given texts; returns what it said. This folder's modules are there."""
    return end(folder, conftest, *options, **tests)[0]


def end(folder: Path, conftest: str, *options: str, **tests: str) -> tuple[str, int]:
    """The same, with the exit status."""
    for name, text in {"conftest": conftest, **tests}.items():
        (folder / f"{name}.py").write_text(text)
    env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(folder)],
        cwd=folder, env=env | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    return done.stdout, done.returncode
