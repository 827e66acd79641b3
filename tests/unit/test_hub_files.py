"""The files for hubs and Binder agree with the project's other files."""

import os
import re
import runpy
import subprocess
import tomllib
import unittest.mock
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from dltutorial.config import PRESETS

ROOT = Path(__file__).parents[2]
BINDER = ROOT / ".binder"
SHELL = [BINDER / "postBuild", BINDER / "start", ROOT / ".ci" / "run"]


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def words(name):
    lines = (BINDER / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("file", SHELL, ids=lambda file: file.name)
def test_a_shell_script_parses_ends_at_the_first_error_and_can_be_executed(file):
    assert subprocess.run(["bash", "-n", str(file)], capture_output=True).returncode == 0
    assert "set -euo pipefail" in file.read_text()
    assert os.access(file, os.X_OK)


def test_binders_python_is_an_allowed_one():
    (line,) = words("runtime.txt")
    version = re.fullmatch(r"python-(\d+\.\d+)", line)[1]
    assert f"{version}.0" in SpecifierSet(project()["requires-python"])


def test_binder_installs_the_pinned_torch_for_cpus_and_the_projects_extras():
    text = (BINDER / "postBuild").read_text()
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if re.match(r"^torch==", line)]
    assert len(pinned) == 1  # what postBuild's grep finds
    assert "torch=$(grep -E '^torch==' constraints.txt)" in text
    assert "--index-url https://download.pytorch.org/whl/cpu" in text
    (extras,) = re.findall(r"-c constraints\.txt -e '\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= set(project()["optional-dependencies"])
    assert not re.findall(r"==\d", text)  # versions stand in one place


def test_binder_has_the_debian_packages_of_the_pocket_cluster():
    assert {"slurm-wlm", "munge"} <= set(words("apt.txt"))
    assert "slurm-wlm munge" in (ROOT / ".ci" / "run").read_text()


def test_binder_starts_each_program_in_the_smoke_preset():
    done = subprocess.run(
        [str(BINDER / "start"), "env"], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=True
    )
    settings = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert settings["DLTUTORIAL_PRESET"] == "smoke" in PRESETS
    assert settings["OMP_WAIT_POLICY"] == "PASSIVE"


def test_without_a_password_the_hub_says_what_to_do(monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_HUB_PASSWORD", "short")
    with pytest.raises(SystemExit, match="DLTUTORIAL_HUB_PASSWORD has 5 characters; export one of at least 12"):
        runpy.run_path(str(ROOT / "hub" / "jupyterhub_config.py"), {"get_config": unittest.mock.MagicMock})
