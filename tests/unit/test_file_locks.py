"""The course makes and reads its data where the file system cannot lock files, as on some NFS and Lustre systems."""

import os
import shutil
import subprocess
import sys

import pytest
from folders import skip_unless_required

# ``flock`` as a file system without a lock server answers it.
NO_LOCKS = """
#include <errno.h>
int flock(int file, int operation) {
    errno = ENOLCK;
    return -1;
}
"""
# The data of the smoke preset, made smaller; then one training pair.
WEATHER = """
import dataclasses, sys
from dltutorial import config
config.PRESETS["smoke"] = dataclasses.replace(config.PRESETS["smoke"], n_lat=16, n_lon=32, years=(1, 1, 1), snapshots=3)
from dltutorial import cli
sys.exit(cli.main(["data", "weather", "--preset", "smoke", "--out", sys.argv[1]]))
"""
PAIR = """
import sys
from dltutorial.data import loaders, store
x, y = loaders.Pairs(store.open_split(sys.argv[1]))[0]
print("pair", tuple(x.shape), tuple(y.shape))
"""
PLAIN = "import sys, h5py; h5py.File(sys.argv[1] + '/train/sim_0001.h5')"
BOTH = """
import sys, h5py
from dltutorial.data import store
file = store.year_files(sys.argv[1], "train")[0]
with h5py.File(file):
    store.read_sample(file, 0)
with h5py.File(file, locking=False):
    store.read_sample(file, 0)
with store.open_split(sys.argv[1]).open_year(0):
    h5py.File(file).close()
"""


@pytest.mark.ci
def test_data_are_made_checked_and_read_where_no_file_can_be_locked(tmp_path):
    if not shutil.which("gcc"):
        skip_unless_required("compiler", "gcc is not installed (apt-get install gcc)")
    (tmp_path / "no_locks.c").write_text(NO_LOCKS)
    library = tmp_path / "no_locks.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "no_locks.c"], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "HDF5_USE_FILE_LOCKING"}
    environment["LD_PRELOAD"] = str(library)
    folder = str(tmp_path / "weather")

    def run(*words):
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    made = run("-c", WEATHER, folder)
    assert made.returncode == 0, made.stderr
    checked = run("-m", "dltutorial", "data", "check", "--source", folder)
    assert "every value is finite" in checked.stdout, checked.stderr
    assert run("-c", PAIR, folder).stdout == "pair (5, 16, 32) (5, 16, 32)\n"
    assert "No locks available" in run("-c", PLAIN, folder).stderr


def test_a_file_that_a_cell_has_open_is_read_all_the_same(tiny_data):
    """HDF5 refuses to open a file twice in one process if only one of the two calls locks it."""
    subprocess.run([sys.executable, "-c", BOTH, str(tiny_data)], check=True, timeout=60)
