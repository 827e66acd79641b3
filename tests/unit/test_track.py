import os
import subprocess
import sys
import threading
from pathlib import Path

import events
import pytest
import wandbfile
from waiting import wait_for

from dltutorial.errors import CourseError
from dltutorial.record import track

# A run that goes on until its tracker cannot; {} is what befalls it after the first step.
BEFALLEN = """
import itertools, os, pathlib, psutil, resource, shutil, signal, sys, threading
from dltutorial.errors import CourseError
from dltutorial.record import track

def core():
    return next(p for p in psutil.Process().children(recursive=True) if p.name().startswith("wandb-core"))

kind, folder = sys.argv[1], pathlib.Path(sys.argv[2]) / "befallen"
tracker = track.Tracker((kind,), folder, dict(a=1))
tracker.log(1, dict(loss=1.0))
if kind == "tensorboard":
    tracker._board.flush()  # its own thread writes nothing while its folder is exchanged
{}
for write in (lambda: [tracker.log(step, dict(loss=1.0)) for step in range(2, 20000)], tracker.close):
    try:
        write()
    except CourseError as error:
        print("LINE", error)
print("THE END")
"""


@pytest.mark.parametrize(("what", "told"), [
    ("resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))", "cannot write TensorBoard's events in "),
    ("(folder / 'tensorboard').rename(folder / 'b').with_name('tensorboard').touch()", "is no folder; move it away"),
    ("shutil.rmtree(folder)", "befallen was removed or moved away while the run wrote there"),
])  # fmt: skip
def test_events_that_cannot_be_written_are_one_line_and_no_traceback(tmp_path, what, told):
    done = subprocess.run(
        [sys.executable, "-c", BEFALLEN.format(what), "tensorboard", str(tmp_path)], capture_output=True, text=True,
        timeout=250,
    )  # fmt: skip
    *lines, end = done.stdout.splitlines()
    assert end == "THE END"
    assert lines
    assert all(line.startswith("LINE") and told in line for line in lines)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("put", [Path.touch, lambda board: board.symlink_to("nowhere")])
def test_what_stands_in_the_place_of_the_events_is_named(tmp_path, put):
    put(tmp_path / "tensorboard")
    with pytest.raises(CourseError) as refused:
        track.Tracker(("tensorboard",), tmp_path, {})
    assert str(refused.value) == f"{tmp_path / 'tensorboard'} is no folder; move it away, then --resume"


def test_an_error_in_a_thread_of_somebody_else_is_told_as_before(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    tracker = track.Tracker(("tensorboard",), tmp_path / "r", {})
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    tracker.close()
    assert [about.exc_type for about in seen] == [ZeroDivisionError]
    assert threading.excepthook == seen.append


def test_without_an_answer_of_wandb_the_run_goes_on_and_ends(tmp_path):
    """Its process is killed, as for want of memory."""
    done = subprocess.run(
        [sys.executable, "-c", BEFALLEN.format("core().kill()"), "wandb", str(tmp_path)],
        capture_output=True, text=True, timeout=250, start_new_session=True,
        env={k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"},  # else it writes by the process of this one
    )  # fmt: skip
    assert done.stdout == "THE END\n"
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "W&B" in line]
    assert "): its record of befallen ends here; the course" in line


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


def test_truncated_wandb_file_gives_what_is_whole(run, tmp_path):
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    target = tmp_path / "wandb" / "offline-run-1" / "run.wandb"
    target.parent.mkdir(parents=True)
    target.write_bytes(file.read_bytes()[:50_000])
    steps = [step for step, _ in wandbfile.read(tmp_path)["train/loss"]]
    assert steps == list(range(1, len(steps) + 1))
    assert 0 < len(steps) < 2000


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
