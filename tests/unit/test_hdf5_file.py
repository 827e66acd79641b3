import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from dltutorial.data import hdf5_file

FULL = """
import resource, sys
import numpy as np
from dltutorial.data import hdf5_file
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    with hdf5_file.created(sys.argv[1]) as (h5, check):
        x = h5.create_dataset("x", (64, 10_000), np.float32, chunks=(1, 10_000))
        for row in range(64):
            x[row] = row
            check()
except OSError as error:
    print("row", row, error.strerror)
"""


def test_what_was_written_is_read(tmp_path):
    with hdf5_file.created(tmp_path / "a.h5") as (h5, check):
        h5["x"] = np.arange(5)
        check()
    with h5py.File(tmp_path / "a.h5") as h5:
        assert h5["x"][:].tolist() == [0, 1, 2, 3, 4]


def test_a_disk_that_takes_no_more_is_an_error_and_not_the_end_of_the_process(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path / "a.h5"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("row ") and "too large" in done.stdout


def test_an_interrupt_waits_for_the_next_check(tmp_path):
    with pytest.raises(KeyboardInterrupt), hdf5_file.created(tmp_path / "a.h5") as (h5, check):
        os.kill(os.getpid(), signal.SIGINT)
        h5["x"] = np.zeros(5)
        check()
        pytest.fail("the interrupt was lost")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_after_the_last_check_is_not_lost(tmp_path):
    with pytest.raises(KeyboardInterrupt), hdf5_file.created(tmp_path / "a.h5"):
        os.kill(os.getpid(), signal.SIGINT)
