"""The course makes and reads its data where the file system cannot lock files, as on some NFS and Lustre systems."""

import os
import shutil
import subprocess
import sys

import h5py
import pytest
from folders import skip_unless_required

from dltutorial.data import formats

# ``flock`` as a file system without a lock server answers it.
NO_LOCKS = """
#include <errno.h>
int flock(int file, int operation) {
    errno = ENOLCK;
    return -1;
}
"""
# The data of the smoke preset, made smaller, checked, and read.
PROGRAM = """
import dataclasses, sys
from pathlib import Path
from dltutorial.config import preset
from dltutorial.data import check, loaders, store, weather
tiny = dataclasses.replace(preset("smoke"), n_lat=16, n_lon=32, years=(1, 1, 1), snapshots=3)
folder = weather.ensure(tiny, Path(sys.argv[1]))
assert not check.check(folder).problems
x, y = loaders.SnapshotPairs(store.open_split(folder))[0]
print("pair", tuple(x.shape), tuple(y.shape))
"""
PLAIN = "import sys, h5py; h5py.File(sys.argv[1] + '/train/sim_0001.h5')"


@pytest.mark.ci
def test_data_are_made_checked_and_read_where_no_file_can_be_locked(tmp_path):
    if not shutil.which("gcc"):
        skip_unless_required("compiler", "gcc is not installed (apt-get install gcc)")
    (tmp_path / "no_locks.c").write_text(NO_LOCKS)
    library = tmp_path / "no_locks.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "no_locks.c"], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "HDF5_USE_FILE_LOCKING"}
    environment["LD_PRELOAD"] = str(library)

    def run(program):
        command = [sys.executable, "-c", program, str(tmp_path / "weather")]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)

    done = run(PROGRAM)
    assert done.stdout == "pair (5, 16, 32) (5, 16, 32)\n", done.stderr
    assert "No locks available" in run(PLAIN).stderr


def test_a_file_that_is_open_in_a_cell_can_be_read(own_data):
    """HDF5 refuses to open a file twice in one process if only one of the two calls locks it."""
    file = own_data / "train" / "1980.h5"
    with h5py.File(file), formats.open_year(file) as year:
        assert len(year) == 10
    with h5py.File(file, locking=False), formats.open_year(file) as year:
        assert len(year) == 10
    with formats.open_year(file):
        h5py.File(file).close()
