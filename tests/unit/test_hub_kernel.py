"""The course as a kernel of a site's hub: it is installed, starts with the site's settings, or says why it does not.

No machine of CI has environment modules or a container runtime. The command ``module`` is a shell function here, and
the container is ``env``, which also starts another program in a changed environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = 'module() { export LOADED="$LOADED $*"; }'


@pytest.fixture(autouse=True)
def _outside_a_job(tmp_path, monkeypatch):
    """Kernels are installed into the test's folder, and this process counts as no Slurm job."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)


def kernel(*words):
    command = [sys.executable, str(ROOT / "hub" / "kernel.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def test_an_installed_kernel_starts_and_reports_in_one_line():
    assert kernel("install", "--user", "--site", "generic").returncode == 0
    checked = kernel("check")
    assert checked.returncode == 0, checked.stderr
    (line,) = checked.stdout.splitlines()
    assert line.startswith("kernel dltutorial works: dltutorial ") and line.endswith(" on a login node")


def test_a_kernel_gets_the_modules_network_and_container_of_its_site(tmp_path, monkeypatch):
    (tmp_path / "profile").write_text(MODULE)
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "profile"))
    monkeypatch.setenv("SBATCH_ACCOUNT", "an account")
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.setenv("DLTUTORIAL_CONTAINER", "env IN_CONTAINER=yes")
    kernel("install", "--site", "perlmutter")
    spec = json.loads((tmp_path / "kernels" / "dltutorial" / "kernel.json").read_text())
    report = tmp_path / "python"  # a stand-in for Python that prints its environment and its arguments
    report.write_text('#!/bin/bash\nenv\necho "$*"\n')
    report.chmod(0o755)
    for name in ("SBATCH_ACCOUNT", "SCRATCH", "DLTUTORIAL_CONTAINER"):
        monkeypatch.delenv(name)  # a hub does not know them

    argv = [str(report) if word == sys.executable else word for word in spec["argv"]]
    started = subprocess.run(argv, env=os.environ | spec["env"], capture_output=True, text=True, check=True)

    *environment, arguments = started.stdout.splitlines()
    assert arguments == "-m ipykernel_launcher -f {connection_file}"
    assert {"SBATCH_ACCOUNT=an account", "LOADED= load pytorch", "DLTUTORIAL_NODE=login"} <= set(environment)
    assert {"NCCL_SOCKET_IFNAME=hsn", "IN_CONTAINER=yes"} <= set(environment)


def test_a_kernel_that_cannot_start_is_one_line(monkeypatch):
    assert kernel("check").stderr.startswith("there is no kernel dltutorial; install it: python hub/kernel.py install")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    kernel("install", "--site", "pocket")
    checked = kernel("check")
    assert checked.returncode == 1
    (line,) = checked.stderr.splitlines()
    assert line.startswith("kernel dltutorial does not start: ") and "start the pocket cluster first" in line
