import os
import subprocess
import sys
from pathlib import Path

import events
import pytest
import wandbfile
from waiting import wait_for

from dltutorial.record import track

FULL_DISK = """
import pathlib, resource, sys
from dltutorial.errors import CourseError
from dltutorial.record import track
tracker = track.Tracker(("tensorboard",), pathlib.Path(sys.argv[1]), dict(a=1))
tracker.log(1, dict(loss=1.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # a file has no room beyond this, as on a full disk
for write in (lambda: [tracker.log(step, dict(loss=1.0)) for step in range(2, 20000)], tracker.close):
    try:
        write()
    except CourseError as error:
        print("LINE", error)
print("THE END")
"""


def test_events_that_find_no_room_are_one_line_and_no_traceback(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    *lines, end = done.stdout.splitlines()
    assert end == "THE END"
    assert lines
    assert all(line.startswith("LINE cannot write TensorBoard's events in ") for line in lines)
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run long enough to cross several 32 KiB blocks of W&B's file."""
    folder = tmp_path_factory.mktemp("runs") / "tracked"
    tracker = track.Tracker(("tensorboard", "wandb"), folder, {"steps": 2000})
    for step in range(1, 2001):
        tracker.log(step, {"train/loss": 1 / step, "valid/rmse": float(step)})
    tracker.close()
    wait_for(lambda: wandbfile.read(folder).get("valid/rmse", [(0, 0)])[-1][0] == 2000)  # W&B's own process writes
    return folder


@pytest.mark.parametrize("read", [events.read, wandbfile.read])
def test_what_was_logged_is_read_back(run, read):
    scalars = read(run)
    assert set(scalars) == {"train/loss", "valid/rmse"}
    steps, values = zip(*scalars["train/loss"], strict=True)
    assert steps == tuple(range(1, 2001))
    assert values == pytest.approx([1 / step for step in steps], rel=1e-6)


def test_wandb_online_without_a_key_is_one_line_and_no_prompt(tmp_path):
    code = (
        "import sys, pathlib\nfrom dltutorial.errors import CourseError\nfrom dltutorial.record import track\n"
        "try: track.Tracker(('wandb',), pathlib.Path(sys.argv[1]), {})\n"
        "except CourseError as error: print('LINE', error)"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("WANDB_API_KEY", "NETRC")}
    environment |= {"WANDB_MODE": "online", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r")],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LINE")]
    assert "stay offline" in line
    assert "Traceback" not in done.stderr


def test_offline_run_names_neither_host_nor_user(run):
    import getpass
    import platform

    files = [f for f in run.glob("wandb/offline-run-*/**/*") if f.suffix in (".wandb", ".json", ".yaml")]
    assert files
    for content in map(Path.read_bytes, files):
        for private in (platform.node(), f"/home/{getpass.getuser()}"):
            assert len(private) < 4 or private.encode() not in content
