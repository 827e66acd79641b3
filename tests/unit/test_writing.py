"""Years are whole or not there, also when the disk is full or a signal arrives."""

import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from dltutorial.data import writing
from dltutorial.data.formats import Layout

SHAPE = (1, 10, 1000)
FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from dltutorial.data import writing
from dltutorial.data.formats import Layout
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    with writing.year_writer(Path(sys.argv[1]), 64, (1, 10, 1000), layout=Layout.of(sys.argv[2])) as append:
        for row in range(64):
            append(np.full((1, 10, 1000), row, np.float32))
except writing.DataError as error:
    print("told", error)
"""


@pytest.mark.parametrize("layout", ["hdf5-chunk1", "hdf5-contiguous", "npy", "zarr-chunk8"])
def test_a_disk_that_takes_no_more_is_an_error_and_not_the_end_of_the_process(layout, tmp_path):
    file = tmp_path / f"1980{Layout.of(layout).suffix}"
    command = [sys.executable, "-c", FULL, file, layout]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("told ") and "too large" in done.stdout
    assert not list(tmp_path.iterdir())


def test_between_writes_an_interrupt_is_immediate(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing.year_writer(tmp_path / "1980.h5", 2, SHAPE) as append:
        append(np.zeros(SHAPE))
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it was not")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_after_the_last_write_is_not_lost(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing.year_writer(tmp_path / "1980.h5", 1, SHAPE) as append:
        append(np.zeros(SHAPE))
        os.kill(os.getpid(), signal.SIGINT)
    assert not list(tmp_path.iterdir())


def test_what_was_written_is_read(tmp_path):
    with writing.year_writer(tmp_path / "1980.h5", 2, SHAPE, attributes={"digest": "abc"}) as append:
        for row in range(2):
            append(np.full(SHAPE, row))
    with h5py.File(tmp_path / "1980.h5") as h5:
        assert h5["fields"][:, 0, 0, 0].tolist() == [0, 1] and h5.attrs["digest"] == "abc"
