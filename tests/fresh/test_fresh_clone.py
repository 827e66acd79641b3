"""What a newcomer does first, in a fresh clone: ``make run`` and ``make lab``.

The clone's .venv starts as a copy of the one that runs the tests, and the clone's own Makefile completes it. This takes
seconds instead of minutes. A set-up from nothing is tested whenever CI starts on a new machine.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from serving import wait_until_answered

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    if not (ROOT / ".git").exists() or sys.prefix == sys.base_prefix:
        pytest.skip("this needs a git clone, and a virtual environment to copy")
    folder = tmp_path_factory.mktemp("fresh") / "dltutorial"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    copy_environment(Path(sys.prefix), folder / ".venv")
    return folder


def copy_environment(source: Path, target: Path) -> None:
    """Copy a .venv without what marks it as set up; the programs in ``bin`` get the path of the copy."""
    not_copied = shutil.ignore_patterns(".course", ".test", "node")
    shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy, ignore=not_copied)
    for program in (target / "bin").iterdir():
        text = b"" if program.is_symlink() or program.is_dir() else program.read_bytes()
        if str(source).encode() in text:
            program.unlink()  # it is a hard link, so writing into it would change the source
            program.write_bytes(text.replace(str(source).encode(), str(target).encode()))
            program.chmod(0o755)


def link_or_copy(source: str, target: str) -> None:
    """A hard link takes neither time nor space, but both files must be on the same file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def environment():
    """The environment of a newcomer's shell: no variable of the tests or of make is set."""
    names = ("DLTUTORIAL_RUNS", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "OMP_WAIT_POLICY")
    return {name: value for name, value in os.environ.items() if name not in names}


def make(folder, *words):
    return subprocess.run(["make", *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=800)


def test_make_run_ends_with_the_table_and_an_index(clone):
    done = make(clone, "run", "ARGS=00 --preset smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"00_welcome .* finished", done.stdout)
    (index,) = clone.glob("runs/*/index.html")
    assert "Welcome: this machine" in index.read_text()
    assert "pip" not in make(clone, "--dry-run", "run").stdout  # the second time nothing has to be installed


def test_make_lab_serves_on_loopback_and_only_with_its_token(clone):
    server = subprocess.Popen(
        ["make", "lab", "ARGS=--no-browser"],
        cwd=clone,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        address = re.compile(r"(http://127\.0\.0\.1:\d+)/lab\S*token=(\w+)")
        url, token = next(match.groups() for line in server.stderr if (match := address.search(line)))
        wait_until_answered(f"{url}/api/status", server, token=token)
        contents = f"{url}/api/contents/notebooks"
        assert "00_welcome" in requests.get(contents, params={"token": token}, timeout=60).text
        assert requests.get(contents, timeout=60).status_code == 403
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(90)


def test_an_old_python_is_one_line(tmp_path):
    old = tmp_path / "python3.9"
    pretend = "import sys; sys.version_info, sys.version = (3, 9, 2), '3.9.2 (old)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{pretend}" "$2"\n')  # make calls it with -c and code
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    done = make(tmp_path, "run", f"PYTHON={old}")
    assert done.returncode != 0
    assert done.stderr.startswith("dltutorial needs Python 3.11 or newer, this is 3.9.2; name another")
