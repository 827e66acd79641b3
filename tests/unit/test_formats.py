import shutil

import h5py
import numpy as np
import pytest

from dltutorial.data import convert, formats, store, writing
from dltutorial.errors import DataError

LAYOUTS = [
    *("hdf5-auto-gzip4", "hdf5-chunk4-gzip1", "hdf5-chunk1-lzf", "hdf5-chunk1", "hdf5-contiguous", "npy"),
    *("zarr-chunk1", "zarr-chunk4-gzip1", "zarr-chunk3-zstd", "zarr-auto"),
]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module")
def converted(tiny_data, tmp_path_factory):
    """Every layout of the same data: name → folder."""
    place = tmp_path_factory.mktemp("layouts")
    return {name: convert.convert(tiny_data, name, place / name, progress=False) for name in LAYOUTS}


@every_layout
def test_every_layout_holds_the_same_numbers(layout, converted, tiny_data):
    for split in store.SPLITS:
        old, new = store.open_split(tiny_data, split), store.open_split(converted[layout], split)
        assert (old.shape, old.snapshots) == (new.shape, new.snapshots)
        assert np.array_equal(old.time_means_1CHW, new.time_means_1CHW)
        for one, other in zip(old.files, new.files, strict=True):
            with formats.open_year(one) as a, formats.open_year(other) as b:
                assert len(a) == len(b) == 10
                for index in range(len(a)):
                    x = b.snapshots(index, 1)[0]
                    assert x.dtype == np.float32
                    assert np.array_equal(a.snapshots(index, 1)[0], x)
                assert np.array_equal(a.snapshots(4, 3), b.snapshots(4, 3))


@every_layout
def test_snapshots_are_read_to_any_place_and_not_beyond_the_end(layout, converted):
    with formats.open_year(store.year_files(converted[layout], "train")[0]) as year:
        block = np.zeros((2, 5, *year.shape), np.float32)
        year.read_into(8, block[:, 3])
        assert np.array_equal(block[:, 3], year.snapshots(8, 2))
        assert not block[:, 2].any()
        for first in (-1, 9):
            with pytest.raises(IndexError):
                year.read_into(first, block[:, 0])
            with pytest.raises(IndexError):
                year.snapshots(first, 2)


@every_layout
def test_the_name_of_a_layout_is_read_back(layout):
    assert formats.Layout.of(layout).name == layout


def test_chunks_and_compression_are_those_asked_for(converted):
    with h5py.File(converted["hdf5-chunk4-gzip1"] / "train" / "1979.h5") as h5:
        assert h5["fields"].chunks == (4, 3, 16, 24)
        assert (h5["fields"].compression, h5["fields"].compression_opts) == ("gzip", 1)
    with h5py.File(converted["hdf5-contiguous"] / "train" / "1979.h5") as h5:
        assert h5["fields"].chunks is None
    compressed = {
        name: formats.open_year(store.year_files(folder, "train")[0]).compressed for name, folder in converted.items()
    }
    assert compressed == {name: any(codec in name for codec in ("gzip", "lzf", "zstd")) for name in LAYOUTS}


def test_the_bytes_of_touched_chunks_are_counted(converted):
    def amplification(layout, count):
        return formats.read_amplification(formats.open_year(store.year_files(converted[layout], "train")[0]), count)

    assert amplification("npy", 2) == amplification("hdf5-contiguous", 1) == amplification("hdf5-chunk1", 2) == 1
    assert amplification("hdf5-chunk4-gzip1", 1) == 4
    # Of the 9 pairs in 10 snapshots 2 lie across the border of chunks of 4, and touch two.
    assert amplification("hdf5-chunk4-gzip1", 2) == pytest.approx((7 * 4 + 2 * 8) / 9 / 2)


def test_an_interrupted_conversion_is_taken_up_and_a_whole_one_kept(tiny_data, tmp_path, monkeypatch):
    folder, written, real = tmp_path / "out", [], writing.year_writer

    def failing(file, *how, **layout):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(file)
        return real(file, *how, **layout)

    monkeypatch.setattr(writing, "year_writer", failing)
    with pytest.raises(KeyboardInterrupt):
        convert.convert(tiny_data, "npy", folder, progress=False)
    assert not (folder / "dataset.json").exists()
    monkeypatch.setattr(
        writing, "year_writer", lambda file, *how, **layout: written.append(file) or real(file, *how, **layout)
    )
    convert.convert(tiny_data, "npy", folder, progress=False)
    assert len(written) == len(set(written)) == 4
    convert.convert(tiny_data, "npy", folder, progress=False)
    assert len(written) == 4
    assert "finite" in store.validate(folder)


def test_what_was_killed_while_writing_is_cleared_away(tiny_data, tmp_path):
    folder = convert.convert(tiny_data, "zarr-chunk1", tmp_path / "out", progress=False)
    (folder / "dataset.json").unlink()
    left = folder / "train" / ".1979.zarr.77.partial"
    left.mkdir()
    (folder / "train" / ".x.npy.abc.partial").write_text("half")
    convert.convert(tiny_data, "zarr-chunk1", folder, progress=False)
    assert not list((folder / "train").glob(".*"))


def test_a_conversion_that_was_killed_as_it_began_is_begun_again(tiny_data, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".convert.json.abc.partial").write_text("{")
    convert.convert(tiny_data, "npy", folder, progress=False)
    assert "finite" in store.validate(folder)


def test_processes_that_convert_at_once_agree(tiny_data, tmp_path, monkeypatch):
    folder, real = tmp_path / "out", store.read_json

    def quicker(file):  # another process begins and ends between two looks of this one, which holds no lock yet
        found = real(file)
        if file.name == "convert.json" and not (folder / ".lock").exists():
            monkeypatch.setattr(store, "read_json", real)
            convert.convert(tiny_data, "npy", folder, progress=False)
        return found

    monkeypatch.setattr(store, "read_json", quicker)
    assert convert.convert(tiny_data, "npy", folder, progress=False) == folder


@pytest.mark.parametrize("what", ["another layout", "a foreign folder", "another source"])
def test_another_data_set_is_not_overwritten(what, tiny_data, own_data, tmp_path):
    folder = tmp_path / "out"
    if what == "a foreign folder":
        folder.mkdir()
        (folder / "mine.txt").write_text("precious")
    else:
        convert.convert(tiny_data, "npy", folder, splits=("valid",), progress=False)
    before = sorted(folder.rglob("*"))
    layout = "hdf5-chunk1" if what == "another layout" else "npy"
    with pytest.raises(DataError, match="choose another folder"):
        convert.convert(own_data, layout, folder, progress=False)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("layout", ["npy", "hdf5-chunk1", "zarr-chunk1"])
def test_a_disk_that_takes_no_more_leaves_no_year(layout, tiny_data, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(formats.Year, "snapshots", full)
    with pytest.raises(DataError, match=r"No space left on device.*make room") as caught:
        convert.convert(tiny_data, layout, tmp_path / "out", progress=False)
    assert "\n" not in str(caught.value)
    assert not [file for file in (tmp_path / "out").rglob("*") if file.suffix in formats.SUFFIXES]


def test_space_is_looked_for_before_anything_is_written(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(convert.writing.machine, "disk_free_bytes", lambda folder: 1000)
    with pytest.raises(DataError, match=r"has 0\.0 MB free, but"):
        convert.convert(tiny_data, "npy", tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").rglob("*.json"))


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_chunk(folder):
    cut(max((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size))


def lose_chunk(folder):
    next(file for file in folder.rglob("*") if file.is_file() and file.name != "zarr.json").unlink()


def hollow(file):
    with h5py.File(file, "w") as h5:
        h5.create_dataset("fields", data=h5py.Empty("f4"))


DAMAGE = {
    "npy, truncated": ("npy", cut, "truncated"),
    "npy, no array": ("npy", lambda file: file.write_text("no"), "no array of numbers"),
    "npy, another shape": ("npy", lambda file: np.save(file, np.zeros((3, 4), np.float32)), "convert it"),
    "npy, integers": ("npy", lambda file: np.save(file, np.zeros((2, 3, 16, 24), int)), "not floats"),
    "npy, pickled": ("npy", lambda file: np.save(file, np.array([{}])), "no array of numbers"),
    "hdf5, truncated": ("hdf5-chunk1", cut, "truncated"),
    "hdf5, empty": ("hdf5-chunk1", hollow, "not floats"),
    "zarr, a chunk lost": ("zarr-chunk1", lose_chunk, "lacks 1 of its 10 chunks"),
    "zarr, a chunk cut": ("zarr-chunk1", damage_chunk, "delete it"),
    "zarr, no array": ("zarr-chunk1", lambda folder: (folder / "zarr.json").unlink(), "zarr"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_year_is_one_line_that_names_the_file(damage, converted, tmp_path):
    layout, act, why = DAMAGE[damage]
    folder = shutil.copytree(converted[layout], tmp_path / "data")
    file = store.year_files(folder, "train")[0]
    act(file)
    with pytest.raises(DataError, match=why) as caught, formats.open_year(file) as year:
        for index in range(len(year)):
            year.snapshots(index, 1)[0]
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
@pytest.mark.parametrize("suffix", [".h5", ".npy"])
def test_other_floats_are_read_as_float32(dtype, suffix, tmp_path):
    x_TCHW, file = np.arange(48).reshape(2, 3, 2, 4).astype(dtype), tmp_path / f"1980{suffix}"
    if suffix == ".npy":
        np.save(file, x_TCHW)
    else:
        with h5py.File(file, "w") as h5:
            h5["fields"] = x_TCHW
    with formats.open_year(file) as year:
        read_NCHW = year.snapshots(0, 2)
        assert read_NCHW.dtype == np.float32 and read_NCHW.dtype.isnative
        assert np.array_equal(read_NCHW, x_TCHW)


def test_two_layouts_in_one_split_are_one_line(converted, tmp_path):
    folder = shutil.copytree(converted["npy"], tmp_path / "data")
    shutil.copy(converted["hdf5-chunk1"] / "train" / "1980.h5", folder / "train")
    with pytest.raises(DataError, match="two layouts"):
        store.open_split(folder, "train")
