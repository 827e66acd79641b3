"""Chapter 03's own function that copies a data set to a node's disk: once, whole, whoever was killed before."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dltutorial.data import store

CHAPTER = Path(__file__).parents[2] / "notebooks" / "03_feed_the_device.ipynb"
CELL = next(
    "".join(cell["source"])
    for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    if "def stage(" in "".join(cell["source"])
)
STAGE = CELL.partition("\n\n\nwith tempfile")[0]
BEGIN = f"import sys\n{STAGE}\nsource, place = map(Path, sys.argv[1:])\n"
ONCE = f"{BEGIN}shutil.rmtree = lambda *half, **how: print('copies')\nstage(source, place)"
KILLED = f"""{BEGIN}
import os, signal
shutil.copytree = lambda source, half: (half.mkdir(), os.kill(os.getpid(), signal.SIGKILL))
stage(source, place)
"""


@pytest.fixture
def stage():
    space = {}
    exec(STAGE, space)
    return space["stage"]


def test_a_staged_data_set_is_the_data_set(stage, tiny_data, tmp_path):
    copy = stage(tiny_data, tmp_path)
    assert copy == tmp_path / tiny_data.name
    assert store.validate(copy).partition(": ")[2] == store.validate(tiny_data).partition(": ")[2]


def test_the_ranks_of_a_node_stage_once(tiny_data, tmp_path):
    command = [sys.executable, "-c", ONCE, str(tiny_data), str(tmp_path)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = "".join(rank.communicate(timeout=250)[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert said.split() == ["copies"]


def test_a_rank_that_is_killed_leaves_the_place_to_the_next(stage, tiny_data, tmp_path):
    command = [sys.executable, "-c", KILLED, str(tiny_data), str(tmp_path)]
    assert subprocess.run(command, timeout=250, check=False).returncode == -9
    assert not (tmp_path / tiny_data.name).exists()
    assert "finite" in store.validate(stage(tiny_data, tmp_path))
