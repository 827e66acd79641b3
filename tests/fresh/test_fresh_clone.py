"""What a newcomer does first, in a fresh clone: `make run`, `make lab`.

The clone's .venv starts as a copy of the one that runs the tests, and the clone's own Makefile sets it up, so that this
takes seconds, not minutes; that a set-up from nothing works is seen whenever CI starts on a new machine.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import tied
from waiting import wait_for

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.xdist_group("fresh_clone"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git clone, so there is nothing to clone")
    folder = tmp_path_factory.mktemp("fresh") / "dltutorial"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    _copy_environment(Path(sys.prefix), folder / ".venv")
    return folder


def _copy_environment(source: Path, target: Path) -> None:
    """Hard links cost no space; programs in bin/ name their Python, so those are written anew."""
    if not (source / "pyvenv.cfg").exists():
        pytest.skip("the tests do not run in a virtual environment, so there is none to copy")
    left_out = shutil.ignore_patterns(".course", ".test", "__pycache__")
    shutil.copytree(source, target, symlinks=True, copy_function=_link, ignore=left_out)
    for program in (target / "bin").iterdir():
        if not program.is_symlink() and program.is_file() and str(source).encode() in (text := program.read_bytes()):
            mode = program.stat().st_mode
            program.unlink()
            program.write_bytes(text.replace(str(source).encode(), str(target).encode()))
            program.chmod(mode)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def environment():
    """That of a newcomer's shell: nothing of the course is set, and no virtual environment is active."""
    ours = (
        "DLTUTORIAL_RUNS",
        "VIRTUAL_ENV",
        "MAKEFLAGS",
        "MAKELEVEL",
        "MFLAGS",
        "OMP_WAIT_POLICY",
    )
    return {name: value for name, value in os.environ.items() if name not in ours}


def make(folder, *words):
    return subprocess.run(["make", *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=800)


def test_make_run_ends_with_the_table_and_an_index(clone):
    done = make(clone, "run", "ARGS=00 --preset smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"00_welcome .* finished", done.stdout)
    (index,) = clone.glob("runs/*/index.html")
    assert "Welcome: this machine" in index.read_text()
    package = subprocess.run(
        [clone / ".venv/bin/python", "-c", "import dltutorial; print(dltutorial.__file__)"],
        cwd=clone / "tests", capture_output=True, text=True,
    )  # fmt: skip
    assert package.stdout.startswith(str(clone))


def test_a_second_make_sets_up_nothing(clone):
    make(clone, "run", "ARGS=--help")
    assert "pip" not in make(clone, "-n", "run").stdout


def test_make_lab_serves_on_loopback_and_only_with_its_token(clone, unused_port):
    server = tied.popen(
        ["make", "lab", f"ARGS=--no-browser --port={unused_port}"],
        cwd=clone,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        url = next(m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+/lab\S*token=\w+", line)))
        status = url.replace("/lab/tree/README.md", "/api/contents")
        assert b"00_welcome" in _get(status.replace("/api/contents", "/api/contents/notebooks"))
        with pytest.raises(urllib.error.HTTPError, match="403"):
            _get(status.partition("?")[0])
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(90)


def test_old_python_is_refused_in_one_line(tmp_path):
    old = tmp_path / "python3.9"
    pretend = "import sys; sys.version_info, sys.version = (3, 9, 2), '3.9.2 (old)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{pretend}" "$2"\n')  # asked with: -c code
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    old.chmod(0o755)
    done = make(tmp_path, "run", f"PYTHON={old}")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("dltutorial needs Python 3.11 or newer, this is 3.9.2; name another")
    assert not (tmp_path / ".venv").exists()


def _get(url: str) -> bytes:
    """The answer, once the server is up."""

    def answer():
        try:
            with urllib.request.urlopen(url, timeout=60) as page:
                return page.read()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return None

    return wait_for(answer)


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
