"""Every layout on disk gives the same numbers. A file that cannot be opened is named in one line."""

import shutil

import h5py
import numpy as np
import pytest

from dltutorial.data import convert, formats, store
from dltutorial.data.formats import Layout
from dltutorial.errors import DataError

LAYOUTS = formats.LAYOUTS | {
    "hdf5-chunk16-gzip4": Layout("hdf5", 4, "gzip"),  # chunks that fit years of 10 snapshots
    "zarr-chunk3-zstd": Layout("zarr", 3, "zstd"),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module")
def converted(tiny_data, tmp_path_factory):
    """Every layout of the same data: name → folder."""
    place = tmp_path_factory.mktemp("layouts")
    for name, layout in LAYOUTS.items():
        shutil.copytree(tiny_data / "stats", place / name / "stats")
        for file in tiny_data.glob("*/*.h5"):
            target = place / name / file.parent.name / f"{file.stem}{layout.suffix}"
            convert.copy_year(file, target, layout)
    return {name: place / name for name in LAYOUTS}


@every_layout
def test_every_layout_holds_the_same_numbers(layout, converted, tiny_data):
    for name in store.SPLITS:
        old = store.open_split(tiny_data, name)
        new = store.open_split(converted[layout], name)
        assert (old.shape, old.snapshots) == (new.shape, new.snapshots)
        for number in range(len(old.files)):
            with old.open_year(number) as a, new.open_year(number) as b:
                x_NCHW = b.read(0, 10)
                assert x_NCHW.dtype == np.float32
                assert np.array_equal(a.read(0, 10), x_NCHW)
                assert np.array_equal(a.read(4, 3), b.read(4, 3))


def test_the_bytes_of_touched_chunks_are_counted(converted):
    def amplification(layout, count):
        with formats.open_year(store.year_files(converted[layout], "train")[0]) as year:
            return formats.read_amplification(year, count)

    assert amplification("npy", 2) == amplification("hdf5-contiguous", 1) == amplification("hdf5-chunk1", 2) == 1
    assert amplification("hdf5-chunk16-gzip4", 1) == 4
    # Of the 9 pairs in 10 snapshots, 2 lie across the border of chunks of 4, and touch two chunks.
    assert amplification("hdf5-chunk16-gzip4", 2) == pytest.approx((7 * 4 + 2 * 8) / 9 / 2)


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def save(x, name="fields"):
    def act(file):
        file.unlink()
        if file.suffix == ".npy":
            np.save(file, x)
        else:
            with h5py.File(file, "w") as h5:
                h5[name] = x

    return act


BAD = {
    "missing": ("hdf5-chunk1", lambda file: file.unlink(), "is missing; make it"),
    "a missing array": ("npy", lambda file: file.unlink(), "is missing; make it"),
    "a missing folder": ("zarr-chunk1", shutil.rmtree, "is missing; make it"),
    "truncated": ("hdf5-chunk1", truncate, "is not readable .*truncated.*; compare it with its source"),
    "a truncated array": ("npy", truncate, "is not readable .*; compare it with its source"),
    "no HDF5": ("hdf5-chunk1", lambda file: file.write_text("<html>404</html>"), "is not readable"),
    "no dataset": ("hdf5-chunk1", save(np.ones((2, 3, 4, 6)), "other"), r"it has \['other'\]; write it in the layout"),
    "another shape": ("hdf5-chunk1", save(np.ones((3, 4))), r"float64 \(3, 4\), not floats \(time, channel, lat, lon"),
    "integers": ("npy", save(np.ones((2, 3, 4, 6), int)), "holds int64 .*, not floats .*; write it in the layout"),
    "no snapshots": ("npy", save(np.ones((0, 3, 4, 6))), "not floats"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_cannot_be_opened_is_one_line_that_names_it(case, converted, tmp_path):
    layout, act, words = BAD[case]
    folder = shutil.copytree(converted[layout], tmp_path / "data")
    file = store.year_files(folder, "train")[0]
    act(file)
    with pytest.raises(DataError, match=words) as caught:
        formats.open_year(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
@pytest.mark.parametrize("suffix", [".h5", ".npy"])
def test_other_floats_are_read_as_float32(dtype, suffix, tmp_path):
    x_TCHW = np.arange(48).reshape(2, 3, 2, 4).astype(dtype)
    file = tmp_path / f"1980{suffix}"
    file.touch()
    save(x_TCHW)(file)
    with formats.open_year(file) as year:
        read_NCHW = year.read(0, 2)
        assert read_NCHW.dtype == np.float32 and read_NCHW.dtype.isnative
        assert np.array_equal(read_NCHW, x_TCHW)
