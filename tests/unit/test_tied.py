import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import gone, wait_for

pytestmark = pytest.mark.ci  # the tests of the tests
TESTS = Path(__file__).parents[1]
# As a JupyterLab without a terminal: Ctrl-C does not end it.
SERVER = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open('pid', 'w').write(str(os.getpid()))
time.sleep(99)
"""
FIXTURE = f"""
import sys, time, pytest, tied
@pytest.fixture(scope="session")
def server():
    yield tied.popen([sys.executable, "-c", {SERVER!r}])
def test_that_takes_long(server):
    time.sleep(99)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_of_the_test_run_leaves_no_server_behind(tmp_path, workers):
    (tmp_path / "test_server.py").write_text(FIXTURE)
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", "."],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(TESTS)}, start_new_session=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60)
    os.killpg(run.pid, signal.SIGINT)
    run.wait(60)
    assert gone(int((tmp_path / "pid").read_text()), 30)
