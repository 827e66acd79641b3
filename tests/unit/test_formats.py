import contextlib
import json
import os
import shutil
import socket
import tempfile
import tracemalloc
import warnings
from pathlib import Path

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
def test_a_year_that_is_shortened_while_it_is_read_is_one_line(layout, converted, tmp_path):
    """HDF5 and Zarr would read zeros, and a memory map would end the process."""
    year = store.year_files(converted[layout], "train")[0]
    mine = tmp_path / year.name
    shutil.copytree(year, mine) if year.is_dir() else shutil.copy(year, mine)
    with formats.open_year(mine) as reading:
        assert reading.snapshots(0, 1).any()
        if mine.is_dir():
            for chunk in [file for file in mine.rglob("*") if file.is_file() and file.suffix != ".json"]:
                chunk.unlink()
        else:
            os.truncate(mine, 3000)
        out_NCHW = np.zeros((1, *reading.shape), np.float32)
        for read in (lambda: reading.snapshots(9, 1), lambda: reading.read_into(9, out_NCHW)):
            with pytest.raises(DataError, match=f"{mine.name}( was shortened|, snapshot 9, holds (one value|NaN))"):
                read()


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


@pytest.mark.parametrize("depth", [0, 1])
def test_large_snapshots_are_read_without_a_copy_of_them(depth, large):
    with formats.open_year(large[depth]) as year:
        block = np.zeros((2, 3, *year.shape), np.float32)
        most = []
        for _ in range(3):  # threads of other tests may still end meanwhile
            tracemalloc.start()
            try:
                year.read_into(2, block[:, 1])
                most.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
        assert min(most) < block[0, 0].nbytes / 2


def test_a_large_snapshot_that_cannot_be_read_is_one_line(tmp_path):
    file, shape = tmp_path / "1980.h5", (2, 600, 512)
    with h5py.File(file, "w") as h5:
        h5.create_dataset("fields", data=np.ones((2, *shape), np.float32), chunks=(1, *shape), compression="gzip")
        at = h5["fields"].id.get_chunk_info(1).byte_offset
    with open(file, "r+b") as f:
        f.seek(at)
        f.write(b"no gzip at all")
    with (
        formats.open_year(file) as year,
        pytest.raises(DataError, match=r"1980\.h5 .*look before you remove it") as caught,
    ):
        year.read_into(0, np.zeros((2, *shape), np.float32))
    assert "\n" not in str(caught.value)


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
    left = folder / "train" / ".1979.zarr.0123abcd.partial"
    left.mkdir()
    (folder / "train" / ".x.npy.89abcdef.partial").write_text("half")
    (folder / ".mine.partial").mkdir()
    (folder / ".mine.partial" / "notes").write_text("precious")
    (folder / "train" / ".x.h5.1234.partial").write_text("precious")
    convert.convert(tiny_data, "zarr-chunk1", folder, progress=False)
    assert [file.name for file in (folder / "train").glob(".*")] == [".x.h5.1234.partial"]
    assert (folder / ".mine.partial" / "notes").exists(), "what this course has not written is not removed"


def test_a_conversion_that_was_killed_as_it_began_is_begun_again(tiny_data, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".convert.json.01234567.partial").write_text("{")
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


def numbers(folder):
    return [
        x_CHW for split in store.SPLITS for file in store.year_files(folder, split) for x_CHW in store.samples(file)
    ]


def twins(tiny_data, tmp_path):
    """Two data sets of one name, whose files agree in name, size and age, and not in what they hold."""
    found = [shutil.copytree(tiny_data, tmp_path / place / "era5") for place in "ab"]
    for file in found[1].glob("*/*.h5"):
        with h5py.File(file, "r+") as year:
            year["fields"][:] *= 2
    for file in (file for folder in found for file in folder.rglob("*.*")):
        os.utime(file, (0, 0))
    return found


def test_data_of_the_same_name_are_converted_each_to_their_own_place(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path / "made"))
    for source in twins(tiny_data, tmp_path):
        folder = convert.convert(source, "npy", progress=False)
        assert np.array_equal(numbers(folder), numbers(source))
        again = convert.convert(folder, "zarr-chunk1", progress=False)
        assert np.array_equal(numbers(again), numbers(source))
        assert convert.convert(source, "npy", progress=False) == folder
    monkeypatch.chdir(source)
    assert np.array_equal(numbers(convert.convert(Path(), "npy", progress=False)), numbers(source))


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("change", ["another place", "another year", "other statistics"])
def test_a_conversion_is_not_taken_for_one_of_other_data(ended, change, tiny_data, tmp_path):
    (source, other), out = twins(tiny_data, tmp_path), tmp_path / "out"
    convert.convert(source, "npy", out, progress=False)
    if not ended:
        (out / "dataset.json").unlink()
        (out / "valid" / "2016.npy").unlink()
    if change != "another place":
        names = {"another year": "valid/2016.h5", "other statistics": "stats/global_means.npy"}
        shutil.copy2(other / names[change], source / names[change])
        os.utime(source / names[change])
        other = source
    before = sorted(out.rglob("*"))
    with pytest.raises(DataError, match=r"out holds another data set.* choose another folder with --out") as caught:
        convert.convert(other, "npy", out, progress=False)
    assert "\n" not in str(caught.value)
    assert sorted(out.rglob("*")) == before


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


def created(write=lambda fields: None, shape=(10, 3, 16, 24), libver=None, **how):
    """Damage: a data set of HDF5 that was created, and into which only some was written."""

    def act(file):
        with h5py.File(file, "w", libver=libver) as h5:
            write(h5.create_dataset("fields", shape, np.float32, **how))

    return act


def elsewhere(file):
    """Values in another file, which has since been lost: HDF5 reads zeros."""
    layout = h5py.VirtualLayout((10, 3, 16, 24), np.float32)
    layout[:] = h5py.VirtualSource("gone.h5", "fields", (10, 3, 16, 24), np.float32)
    with h5py.File(file, "w") as h5:
        h5.create_virtual_dataset("fields", layout)


def packed(file):
    with h5py.File(file, "a") as h5:
        h5["fields"].attrs["add_offset"] = 5.0


def packed_zarr(version, **attributes):
    """Damage: whole values, as they were packed."""

    def act(folder):
        import zarr

        x_TCHW = zarr.open(folder, mode="r")[:]
        fields = zarr.create_array(folder, data=x_TCHW, zarr_format=version, overwrite=True)
        fields.attrs.update(attributes)

    return act


def linked(to):
    """Damage: ``fields`` is a link, to a pipe in the end."""

    def act(file):
        os.mkfifo(file.with_name("pipe"))
        with h5py.File(file, "w") as h5:
            h5["other"], h5["fields"] = h5py.ExternalLink("pipe", "fields"), to

    return act


def pipe_for(name):
    """Damage: a part of a folder is a pipe."""

    def act(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return act


def put(x, snapshots=slice(None)):
    return lambda fields: fields.__setitem__(snapshots, x)


def group(version):
    """A group of Zarr's with an array in it."""

    def act(folder):
        import zarr

        shutil.rmtree(folder)
        made = zarr.open_group(folder, mode="w", zarr_format=version)
        made.create_array("fields", shape=(10, 3, 16, 24), dtype="float32")[:] = 1

    return act


def plugin(file):
    """Packed by a filter (Blosc) that is not part of HDF5; the flag leaves out what it cannot do."""
    packing = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    packing.set_chunk((1, 3, 16, 24))
    packing.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
    with h5py.File(file, "w") as h5:
        space = h5py.h5s.create_simple((10, 3, 16, 24))
        h5py.h5d.create(h5.id, b"fields", h5py.h5t.IEEE_F32LE, space, packing)
        h5["fields"][:] = 1


def replaced_by(make):
    """Damage: something else has the year's place."""

    def act(file):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        make(file)

    return act


def listening(path):
    """A socket; its name is shorter than what a system takes."""
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
        server.bind(path.name)


def a_billion_in_npy(file):
    with open(file, "wb") as out:
        np.lib.format.write_array_header_2_0(out, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 3, 16, 24)})


def a_billion_in_zarr(folder):
    about = json.loads((folder / "zarr.json").read_text())
    about["shape"][0] = 10**9
    (folder / "zarr.json").write_text(json.dumps(about))


PIECES = {"chunks": (1, 3, 16, 24)}
DAMAGE = {
    "npy, truncated": ("npy", cut, "truncated"),
    "npy, no array": ("npy", lambda file: file.write_text("no"), "no array of numbers"),
    "npy, another shape": ("npy", lambda file: np.save(file, np.zeros((3, 4), np.float32)), "write it as such"),
    "npy, integers": ("npy", lambda file: np.save(file, np.zeros((2, 3, 16, 24), int)), "not floats"),
    "npy, pickled": ("npy", lambda file: np.save(file, np.array([{}])), "no array of numbers"),
    "hdf5, truncated": ("hdf5-chunk1", cut, "truncated"),
    "hdf5, empty": ("hdf5-chunk1", hollow, "not floats"),
    "hdf5, no snapshot": ("hdf5-chunk1", created(shape=(0, 3, 16, 24)), r"float32 \(0, 3, 16, 24\): not one value"),
    "hdf5, never written": ("hdf5-chunk1", created(**PIECES), "lacks 10 of its 10 chunks"),
    "hdf5, half written": ("hdf5-chunk1", created(put(1, slice(4)), **PIECES), "lacks 6 of its 10 chunks"),
    "hdf5, half written, compressed": (
        *("hdf5-chunk1", created(put(1, slice(4)), compression="gzip", **PIECES), "lacks 6 of its 10 chunks"),
    ),
    "hdf5, in one piece, never written": ("hdf5-contiguous", created(), "lacks 1 of its 1 chunks"),
    "hdf5, that refers to lost files": ("hdf5-chunk1", elsewhere, "keeps its values in other files"),
    "hdf5, packed": ("hdf5-chunk1", packed, "has packed values, to be read with scale_factor and add_offset"),
    "zarr, packed": ("zarr-chunk1", packed_zarr(3, add_offset=5.0), "has packed values, to be read with scale_factor"),
    "zarr, packed, of version 2": ("zarr-chunk1", packed_zarr(2, scale_factor=0.1), "has packed values"),
    "zarr, packed with no number": ("zarr-chunk1", packed_zarr(3, scale_factor="a tenth"), "has packed values"),
    "hdf5, raw values beside it": ("hdf5-contiguous", created(external=[("x.raw", 0, 46080)]), "in other files"),
    "hdf5, a link to a pipe": ("hdf5-chunk1", linked(h5py.ExternalLink("pipe", "fields")), "in other files"),
    "hdf5, a link to such a link": ("hdf5-chunk1", linked(h5py.SoftLink("/other")), "in other files"),
    "hdf5, a link to another year": (
        *("hdf5-chunk1", linked(h5py.ExternalLink("1980.h5", "fields")), "in other files"),
    ),
    "zarr, a pipe for its header": ("zarr-chunk1", pipe_for("zarr.json"), r"zarr\.json is no regular file"),
    "zarr, a pipe for another version's": ("zarr-chunk1", pipe_for(".zarray"), r"\.zarray is no regular file"),
    "zarr, a pipe for a chunk": ("zarr-chunk1", pipe_for("c/3/0/0/0"), r"c/3/0/0/0 is no regular file"),
    "hdf5, a billion snapshots": (
        *("hdf5-chunk1", created(put(1, 0), (10**9, 3, 16, 24), "latest", **PIECES), "claims 1,000,000,000 samples"),
    ),
    "hdf5, a million snapshots": (
        *("hdf5-chunk1", created(put(1, 0), (10**6, 3, 16, 24), **PIECES), "lacks 999,999 of its 1,000,000 chunks"),
    ),
    "npy, a billion snapshots": ("npy", a_billion_in_npy, "is truncated"),
    "zarr, a billion snapshots": ("zarr-chunk1", a_billion_in_zarr, "claims 1,000,000,000 samples"),
    "hdf5, a pipe": ("hdf5-chunk1", replaced_by(os.mkfifo), "is no regular file"),
    "npy, a pipe": ("npy", replaced_by(os.mkfifo), "is no regular file"),
    "zarr, a pipe": ("zarr-chunk1", replaced_by(os.mkfifo), "is no folder"),
    "hdf5, a folder": ("hdf5-chunk1", replaced_by(Path.mkdir), "is no regular file"),
    "hdf5, a socket": ("hdf5-chunk1", replaced_by(listening), "is no regular file"),
    "npy, a device": ("npy", replaced_by(lambda file: file.symlink_to("/dev/zero")), "is no regular file"),
    "hdf5, a link to itself": (
        "hdf5-chunk1",
        replaced_by(lambda file: file.symlink_to(file)),
        "cannot be read: Too many",
    ),
    "zarr, a chunk lost": ("zarr-chunk1", lose_chunk, "lacks 1 of its 10 chunks"),
    "zarr, a chunk cut": ("zarr-chunk1", damage_chunk, "truncated"),
    "zarr, a group": ("zarr-chunk1", group(3), "is a Zarr group, as xarray writes it, and may well be whole"),
    "zarr, a group of version 2": ("zarr-chunk1", group(2), "is a Zarr group, as xarray writes it"),
    "hdf5, a filter without its plugin": ("hdf5-chunk1", plugin, r"is packed with filter 32001 \(.*\), whose plugin"),
    "hdf5, no HDF5": ("hdf5-chunk1", lambda file: file.write_bytes(b"x" * 5000), "look before you remove it"),
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


@every_layout
def test_a_whole_year_with_chunks_at_its_edges_is_opened(layout, tmp_path):
    """Chunks need not divide what they hold; those set aside early look written, as they are."""
    file = tmp_path / f"1980{formats.Layout.of(layout).suffix}"
    with writing.year_writer(file, 10, (2, 33, 65), layout=formats.Layout.of(layout)) as append:
        append(np.ones((10, 2, 33, 65)))
    assert len(formats.open_year(file)) == 10


@pytest.mark.parametrize("how", [{"chunks": (3, 2, 8, 9)}, {}, {"chunks": True, "compression": "lzf"}])
def test_a_year_that_others_wrote_whole_is_opened(how, tmp_path):
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    created(put(1 + np.arange(24)), dcpl=early, **how)(tmp_path / "1980.h5")
    created(put(1 + np.arange(24)), maxshape=(None, 3, 16, 24), chunks=(1, 3, 16, 24))(tmp_path / "1981.h5")
    for name in ("1980.h5", "1981.h5"):
        with formats.open_year(tmp_path / name) as year:
            assert year.snapshots(9, 1).all()


def test_a_zarr_array_in_shards_is_counted_by_them(tmp_path):
    import zarr

    how = {"shape": (10, 1, 4, 4), "chunks": (1, 1, 4, 4), "shards": (5, 1, 4, 4), "dtype": "float32"}
    fields = zarr.create_array(tmp_path / "1980.zarr", **how)
    fields[:5] = 1
    with pytest.raises(DataError, match="lacks 1 of its 2 chunks"):
        formats.open_year(tmp_path / "1980.zarr")
    fields[5:] = 1
    assert len(formats.open_year(tmp_path / "1980.zarr")) == 10


def in_hdf5(file, x_TCHW, **how):
    with h5py.File(file, "w") as h5:
        h5.create_dataset("fields", data=x_TCHW, **{"fillvalue" if k == "fill_value" else k: v for k, v in how.items()})


def in_zarr(version):
    def write(file, x_TCHW, **how):
        import zarr

        fields = zarr.create_array(file, shape=x_TCHW.shape, dtype=x_TCHW.dtype, zarr_format=version, **how)
        fields[:] = x_TCHW

    return write


FILLED = {"hdf5": (".h5", in_hdf5), "zarr 2": (".zarr", in_zarr(2)), "zarr 3": (".zarr", in_zarr(3))}


def filled(kind, folder, value, **how):
    """A year of one kind, a value of which is this."""
    suffix, write = FILLED[kind]
    x_TCHW = np.arange(2 * 1 * 4 * 4, dtype=np.float32).reshape(2, 1, 4, 4)
    x_TCHW[1, 0, 2, 2] = value
    write(folder / f"1980{suffix}", x_TCHW, **how)
    return formats.open_year(folder / f"1980{suffix}")


@pytest.mark.parametrize("kind", ["hdf5", "zarr 2"])
def test_a_fill_value_that_no_attribute_names_stands_for_no_value(kind, tmp_path):
    with filled(kind, tmp_path, -7777, fill_value=-7777) as year:
        assert year.no_value == -7777
        assert year.snapshots(0, 1).any()
        with pytest.raises(DataError, match=r"1980\.\w+ holds -7777, its own word for no value; leave the year out"):
            year.snapshots(1, 1)


@pytest.mark.parametrize("fill_value", [None, 0, np.nan])
@pytest.mark.parametrize("kind", FILLED)
def test_a_fill_value_that_the_library_sets_is_no_word_of_the_files_own(kind, fill_value, tmp_path):
    """Else a field with a zero in it, as all the snow of a summer, could not be read."""
    with filled(kind, tmp_path, 0, fill_value=fill_value) as year:
        assert np.isnan(year.no_value)
        assert year.snapshots(1, 1)[0, 0, 2, 2] == 0


def test_a_fill_value_of_zarr_3_is_only_what_was_never_written(tmp_path):
    with filled("zarr 3", tmp_path, -7777, fill_value=-7777) as year:
        assert year.snapshots(1, 1)[0, 0, 2, 2] == -7777


def test_a_year_of_hdf5_whose_fill_value_is_left_undefined_is_read(tmp_path):
    file, size = tmp_path / "1980.h5", b"\4\0\0\0"
    with filled("hdf5", tmp_path, 0, fill_value=-7777):
        before = file.read_bytes()
    is_defined = b"\1" + size + np.float32(-7777).tobytes()
    assert before.count(is_defined) == 1
    file.write_bytes(before.replace(is_defined, b"\0" + is_defined[1:]))
    with formats.open_year(file) as year:
        assert np.isnan(year.no_value)
        assert year.snapshots(0, 1).any()


def test_a_fill_value_too_large_for_float32_is_no_warning(tmp_path):
    in_hdf5(tmp_path / "1980.h5", np.arange(16.0).reshape(1, 1, 4, 4), fillvalue=1e300)
    with warnings.catch_warnings(action="error"), formats.open_year(tmp_path / "1980.h5") as year:
        assert year.snapshots(0, 1).any()


@contextlib.contextmanager
def ordinary_user():
    """The system lets root read all; a test's own folder is closed to others, so it is done elsewhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("layout", ["npy", "hdf5-chunk1", "zarr-chunk1"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_not_be_read_is_not_called_damaged(layout, what, converted, tmp_path_factory):
    import zarr  # noqa: F401 (as an ordinary user it may not be readable)

    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = shutil.copytree(converted[layout], Path(place) / "data")
        closed = folder / "train" if what == "folder" else store.year_files(folder, "train")[0]
        closed.chmod(0o111 if closed.is_dir() else 0)
        denied = "cannot be read: Permission denied; it may well be whole"
        with pytest.raises(DataError, match=denied) as caught, ordinary_user():
            store.open_split(folder, "train")
        closed.chmod(0o755)
    assert str(closed) in str(caught.value)
    assert "\n" not in str(caught.value) and "delete" not in str(caught.value)


def test_a_library_that_was_not_loaded_whole_is_no_damage(tmp_path):
    """A Ctrl-C that comes while torch loads NumPy is lost there, and NumPy is half loaded."""
    with pytest.raises(AttributeError, match="module 'numpy'"), formats.blaming(tmp_path / "a.h5"):
        raise AttributeError("module 'numpy' has no attribute 'matrix'")


def test_an_error_of_the_disk_is_not_called_damage():
    quoted = "Can't read data (file read failed: errno = 5, error message = 'Input/output error', buf = 0x1)"
    for error in (OSError(5, "Input/output error"), OSError(quoted)):
        told = r"a\.h5 cannot be read: Input/output error; it may well be whole"
        with pytest.raises(DataError, match=told), formats.blaming(Path("a.h5")):
            raise error


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
