"""Folders that several tests use, and how a test is skipped for something that is missing."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARTIFACTS = ROOT / "artifacts"


def skip_unless_required(name: str, reason: str) -> None:
    """Skip this test, or fail it if the variable ``DLTUTORIAL_REQUIRE`` names what is missing."""
    if name in os.environ.get("DLTUTORIAL_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)
