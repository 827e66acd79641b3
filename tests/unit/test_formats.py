"""Every layout on disk gives the same numbers, and a damaged file is one line that names it."""

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


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Years whose snapshots are large, in three layouts: chunk depth, or 0 for contiguous → file."""
    x_TCHW, files = np.arange(6 * 2 * 600 * 512, dtype=np.float32).reshape(6, 2, 600, 512), {}
    for depth in (0, 1, 2):
        files[depth] = tmp_path_factory.mktemp("large") / "1980.h5"
        with h5py.File(files[depth], "w") as h5:
            h5.create_dataset("fields", data=x_TCHW, chunks=(depth, 2, 600, 512) if depth else None)
    return files


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("crop", [None, (592, 512), (592, 500)])
def test_large_snapshots_are_the_same_in_any_place(depth, crop, large):
    with formats.open_year(large[depth], crop) as year:
        block = np.zeros((2, 3, *year.shape), np.float32)
        year.read_into(2, block[:, 1])
        assert np.array_equal(block[:, 1], year.snapshots(2, 2))
        assert not block[:, [0, 2]].any()
        with pytest.raises(IndexError):
            year.read_into(5, block[:, 0])


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


def created(write, shape=(10, 3, 16, 24), **how):
    """Damage: a new HDF5 dataset, of which ``write`` fills a part."""

    def act(file):
        with h5py.File(file, "w") as h5:
            write(h5.create_dataset("fields", shape, np.float32, **how))

    return act


def nothing(fields):
    """Write nothing."""


def four_snapshots(fields):
    fields[:4] = 1


def halve(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def pack(file):
    with h5py.File(file, "a") as h5:
        h5["fields"].attrs["add_offset"] = 5.0


def lose_a_chunk(folder):
    next(file for file in folder.rglob("*") if file.is_file() and file.name != "zarr.json").unlink()


def group_of_zarr(folder):
    import zarr

    shutil.rmtree(folder)
    made = zarr.open_group(folder, mode="w")
    made.create_array("fields", shape=(10, 3, 16, 24), dtype="float32")[:] = 1


def lost_source(file):
    """Values in another file, which is not there: HDF5 would read zeros."""
    layout = h5py.VirtualLayout((10, 3, 16, 24), np.float32)
    layout[:] = h5py.VirtualSource("gone.h5", "fields", (10, 3, 16, 24), np.float32)
    with h5py.File(file, "w") as h5:
        h5.create_virtual_dataset("fields", layout)


DAMAGE = {
    "npy, truncated": ("npy", halve, "truncated; copy it again from its source"),
    "npy, another shape": ("npy", lambda file: np.save(file, np.zeros((3, 4), np.float32)), "write it as such"),
    "npy, integers": ("npy", lambda file: np.save(file, np.zeros((2, 3, 16, 24), int)), "not floats"),
    "npy, pickled": ("npy", lambda file: np.save(file, np.array([{}])), "no array of numbers"),
    "hdf5, truncated": ("hdf5-chunk1", halve, "truncated; copy it again from its source"),
    "hdf5, no HDF5": ("hdf5-chunk1", lambda file: file.write_bytes(b"x" * 5000), "compare it with its source"),
    "hdf5, packed": ("hdf5-chunk1", pack, "has packed values, to be read with scale_factor and add_offset"),
    "hdf5, a lost source": ("hdf5-chunk1", lost_source, "keeps its values in other files"),
    "hdf5, no snapshot": ("hdf5-chunk1", created(nothing, (0, 3, 16, 24)), r"\(0, 3, 16, 24\), so it has no values"),
    "hdf5, half written": ("hdf5-chunk1", created(four_snapshots, chunks=(1, 3, 16, 24)), "lacks 6 of its 10 chunks"),
    "zarr, a chunk lost": ("zarr-chunk1", lose_a_chunk, "lacks 1 of its 10 chunks"),
    "zarr, a group": ("zarr-chunk1", group_of_zarr, "is a Zarr group, as xarray writes it"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_year_is_one_line_that_names_the_file(damage, converted, tmp_path):
    layout, act, why = DAMAGE[damage]
    folder = shutil.copytree(converted[layout], tmp_path / "data")
    file = store.year_files(folder, "train")[0]
    act(file)
    with pytest.raises(DataError, match=why) as caught, formats.open_year(file) as year:
        year.snapshots(0, len(year))
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fill_value", [None, 0, np.nan])
def test_a_fill_value_that_the_library_sets_does_not_mark_missing_values(fill_value, tmp_path):
    """A field may contain zeros, for example the snow of a summer."""
    x_TCHW = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    with h5py.File(tmp_path / "1980.h5", "w") as h5:
        h5.create_dataset("fields", data=x_TCHW, fillvalue=fill_value)
    with formats.open_year(tmp_path / "1980.h5") as year:
        assert np.isnan(year.no_value)
        assert year.snapshots(0, 1)[0, 0, 0, 0] == 0


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
