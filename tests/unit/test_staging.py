import filecmp
import subprocess
import sys
import threading

import filelock
import pytest
import zarr

from dltutorial.data import formats, staging, store, writing
from dltutorial.errors import DataError


def names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_staged_data_set_is_the_data_set(tiny_data, tmp_path):
    copy = staging.stage(tiny_data, tmp_path, progress=False)
    assert copy == tmp_path / tiny_data.name
    assert names(copy) == names(tiny_data)
    assert filecmp.cmpfiles(tiny_data, copy, names(tiny_data), shallow=False)[1:] == ([], [])
    assert "finite" in store.validate(copy)


def test_a_whole_copy_is_used_again(tiny_data, tmp_path, monkeypatch):
    copy = staging.stage(tiny_data, tmp_path, progress=False)
    monkeypatch.setattr(staging.shutil, "copyfile", lambda *job: pytest.fail("copied again"))
    assert staging.stage(tiny_data, tmp_path, progress=False) == copy


def test_the_ranks_of_a_node_stage_once(tiny_data, tmp_path):
    code = (
        "import sys; from pathlib import Path; from dltutorial.data import writing, staging\n"
        "real = writing.atomic_folder; writing.atomic_folder = lambda place: (print('copied'), real(place))[1]\n"
        "staging.stage(Path(sys.argv[1]), Path(sys.argv[2]), progress=False)"
    )
    command = [sys.executable, "-c", code, str(tiny_data), str(tmp_path)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = "".join(rank.communicate(timeout=250)[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert said.split() == ["copied"]


def test_a_rank_that_waits_too_long_says_so(tiny_data, tmp_path):
    held = tmp_path / f".staging-{tiny_data.name}"
    held.mkdir()
    with filelock.FileLock(held / ".lock"):
        box = []

        def wait():
            with pytest.raises(DataError, match=r"another process has held .* for 0.2 s") as caught:
                staging.stage(tiny_data, tmp_path, deadline_s=0.2, progress=False)
            box.append(str(caught.value))

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(90)
    assert len(box) == 1
    assert "\n" not in box[0]


def test_a_disk_without_room_is_told_before_anything_is_copied(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(writing.machine, "disk_free_bytes", lambda folder: 10)
    with pytest.raises(DataError, match="are needed"):
        staging.stage(tiny_data, tmp_path, progress=False)
    assert not (tmp_path / tiny_data.name).exists()


def test_a_disk_that_fills_up_leaves_nothing(tiny_data, tmp_path, monkeypatch):
    def full(source, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging.shutil, "copyfile", full)
    with pytest.raises(DataError, match=r"No space left on device; choose another folder.*, or make room") as caught:
        staging.stage(tiny_data, tmp_path, progress=False)
    assert "\n" not in str(caught.value)
    assert not [file for file in names(tmp_path) if "1979" in file]


def test_what_a_killed_rank_left_is_cleared_away(tiny_data, tmp_path):
    left = tmp_path / f".{tiny_data.name}.4711.partial"
    left.mkdir()
    (left / "half.h5").write_text("half")
    staging.stage(tiny_data, tmp_path, progress=False)
    assert not left.exists()


def drop(copy):
    (copy / "train" / "1979.h5").unlink()


def cut(copy):
    (copy / "train" / "1979.h5").write_bytes(b"short")


@pytest.mark.parametrize("act", [drop, cut, lambda copy: (copy / "more.json").write_text("{}")])
def test_half_a_copy_is_not_taken_for_whole(act, tiny_data, tmp_path):
    act(staging.stage(tiny_data, tmp_path, progress=False))
    with pytest.raises(DataError, match=r"is no whole copy of .*; delete it and stage again"):
        staging.stage(tiny_data, tmp_path, progress=False)


def test_nothing_to_stage_is_one_line(tmp_path):
    with pytest.raises(DataError, match="no data folder"):
        staging.stage(tmp_path / "nowhere", tmp_path / "disk")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no file"):
        staging.stage(tmp_path / "empty", tmp_path / "disk")


def test_a_data_set_is_not_staged_onto_or_into_itself(tiny_data, own_data):
    for place in (own_data.parent, own_data, own_data / "train"):
        with pytest.raises(DataError, match="no place for its copy; choose another place"):
            staging.stage(own_data, place, progress=False)
    assert names(own_data) == names(tiny_data)


def test_a_copy_in_the_making_is_not_cleared_away_for_one_with_a_shorter_name(tiny_data, tmp_path):
    others = tmp_path / f".{tiny_data.name}.1.4711.partial"
    others.mkdir()
    staging.stage(tiny_data, tmp_path, progress=False)
    assert others.exists()


def test_what_the_second_version_of_zarr_hides_is_copied(tmp_path):
    year = tmp_path / "mine" / "train" / "0001.zarr"
    zarr.create_array(str(year), shape=(2, 1, 2, 2), chunks=(1, 1, 2, 2), dtype="float32", zarr_format=2)[:] = 1
    copy = staging.stage(tmp_path / "mine", tmp_path / "disk", progress=False)
    with formats.open_year(copy / "train" / "0001.zarr") as opened:
        assert opened.snapshots(1, 1).sum() == 4


def test_a_stager_that_is_killed_leaves_the_place_to_the_next(tiny_data, tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from dltutorial.data import staging\n"
        "staging.shutil.copyfile = lambda *job: os.kill(os.getpid(), signal.SIGKILL)\n"
        "staging.stage(Path(sys.argv[1]), Path(sys.argv[2]), progress=False)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tiny_data), str(tmp_path)], timeout=250, check=False)
    assert killed.returncode == -9
    assert list(tmp_path.glob(".*.partial"))
    copy = staging.stage(tiny_data, tmp_path, deadline_s=90, progress=False)
    assert "finite" in store.validate(copy)
    assert not list(tmp_path.glob(".*.partial"))
