"""Data sets of any bytes and any header: a split, or one line that says what is wrong; no crash, no hang."""

import contextlib
import json
import os
import shutil

import h5py
import numpy as np
import pytest
from forking import is_line
from hostile import BYTES, JSON, NUMBERS, TEXT, Content, Quiet, as_json, changed, damaged, examples, json_bytes
from hypothesis import given
from hypothesis import strategies as st

from dltutorial.data import writing
from dltutorial.data.formats import Layout

T, C, H, W = 3, 2, 4, 6
ABOUT = {"channels": ["u", "v"], "units": ["m/s", ""], "geometry": "beta-plane", "snapshot_s": 3600.0, "digest": "0"}
LAYOUTS = ("hdf5-chunk1", "hdf5-contiguous", "hdf5-chunk2-gzip4", "hdf5-chunk1-lzf", "npy", "zarr-chunk2-zstd")


def write(folder, layout):
    x_TCHW = np.random.default_rng(0).normal(size=(T, C, H, W)).astype(np.float32)
    for number, split in enumerate(("train", "valid", "test"), 1):
        (folder / split).mkdir(parents=True)
        file = folder / split / f"sim_{number:04d}{layout.suffix}"
        with writing.year_writer(file, T, (C, H, W), layout=layout) as append:
            append(x_TCHW)
    (folder / "stats").mkdir()
    writing.write_stats(folder)
    (folder / "dataset.json").write_text(json.dumps(ABOUT))


@pytest.fixture(scope="module")
def good(place):
    """The bytes of a whole data set in each layout, by path."""
    found = Quiet()
    for name in LAYOUTS:
        folder = place / "good" / name
        write(folder, Layout.of(name))
        found[name] = {
            str(file.relative_to(folder)): Content(file.read_bytes()) for file in folder.rglob("*") if file.is_file()
        }
    return found


def lay(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def look(forking, folder, files=None):
    """A split of these files, and whether all of them pass: each may be refused, in one line."""
    if files is not None:
        lay(folder, files)
    shape, whole, why = forking("open_data", str(folder)).value_or_line()
    assert (not why) == (whole is not None)
    assert whole or is_line(why), why
    return shape, whole


def test_good_data_pass(forking, place, good):
    for files in good.values():
        shape, whole = look(forking, place / "data", files)
        assert shape == [C, H, W]
        assert whole


@examples(100)
@given(st.data())
def test_damaged_bytes(forking, place, good, data):
    files = dict(good[data.draw(st.sampled_from(LAYOUTS))])
    for name in data.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=2, unique=True)):
        if data.draw(st.integers(0, 9)):
            files[name] = data.draw(damaged(files[name]))
        else:
            del files[name]
    look(forking, place / "data", files)


SIZES = st.integers(0, 7) | st.sampled_from([2**31, 10**9, 10**12, 2**62])
SHAPES = st.just((T, C, H, W)) | st.lists(SIZES, max_size=5).map(tuple)
DTYPES = st.sampled_from(["<f4", "<f4", ">f8", "f2", "i4", "?", "c8", "S3", "V4", "M8[s]"])


@st.composite
def hdf5(draw):
    """How to write a year's file."""
    options = {"chunks": draw(st.none() | st.just(True) | SHAPES), "fillvalue": draw(st.none() | NUMBERS)}
    options["compression"] = draw(st.sampled_from([None, None, "gzip", "lzf"]))
    options |= draw(st.dictionaries(st.sampled_from(["shuffle", "fletcher32", "track_order"]), st.just(True)))
    what = draw(st.sampled_from(["dataset"] * 5 + ["group", "soft", "loop", "external", "virtual", "empty", "text"]))
    return what, draw(SHAPES), draw(DTYPES), options, draw(st.dictionaries(TEXT, TEXT | NUMBERS, max_size=2))


def write_hdf5(file, what, shape, dtype, options, attributes):
    """Where the library cannot write it, there is less in the file."""
    with h5py.File(file, "w") as h5, contextlib.suppress(Exception):
        if what == "dataset":
            h5.create_dataset("fields", shape, dtype, **options)
        elif what == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            layout[:] = h5py.VirtualSource("nowhere.h5", "fields", shape)
            h5.create_virtual_dataset("fields", layout)
        else:
            links = {"soft": h5py.SoftLink("/nowhere"), "loop": h5py.SoftLink("/fields"), "text": "a text",
                     "external": h5py.ExternalLink("/dev/zero", "fields"), "empty": h5py.Empty(dtype)}  # fmt: skip
            h5["fields"] = links[what] if what in links else h5.create_group("other")
        h5["fields"].attrs.update(attributes)


@examples(60)
@given(hdf5())
def test_any_header_of_hdf5(forking, place, good, how):
    folder = place / "data"
    lay(folder, good["hdf5-chunk1"])
    write_hdf5(folder / "train" / "sim_0001.h5", *how)
    look(forking, folder)


FILES = st.sampled_from(["train/sim_0001.npy", "stats/time_means.npy"])
VERSIONS = [(1, 0), (2, 0), (3, 0), (9, 9)]


@examples(60)
@given(FILES, DTYPES | TEXT | JSON, st.booleans() | JSON, SHAPES | JSON, st.sampled_from(VERSIONS), BYTES)
def test_any_header_of_npy(forking, place, good, name, dtype, order, shape, version, tail):
    header = repr({"descr": dtype, "fortran_order": order, "shape": tuple(shape) if isinstance(shape, list) else shape})
    text = header.encode("utf-8", "replace") + b"\n"
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    content = b"\x93NUMPY" + bytes(version) + size + text
    body = good["npy"]["train/sim_0001.npy"][-4 * T * C * H * W :]
    look(forking, place / "data", good["npy"] | {name: content + body + tail})


@examples(60)
@given(st.data())
def test_any_header_of_zarr(forking, place, good, data):
    files = good["zarr-chunk2-zstd"]
    name = next(name for name in files if name.startswith("train") and name.endswith("zarr.json"))
    header = json.loads(files[name])
    near = as_json(changed(header, JSON | SHAPES.map(list)))
    content = data.draw(near | near | near | json_bytes())
    look(forking, place / "data", files | {name: content})


@examples(60)
@given(as_json(changed(ABOUT)) | json_bytes())
def test_any_words_about_a_data_set(forking, place, good, content):
    look(forking, place / "data", good["npy"] | {"dataset.json": content})


@examples(60)
@given(st.sampled_from(["global_means", "global_stds", "time_means"]), SHAPES, DTYPES, NUMBERS)
def test_any_statistics(forking, place, good, name, shape, dtype, value):
    wanted = (1, C, H, W) if name == "time_means" else (1, C, 1, 1)
    shape = wanted if max(shape, default=0) > 9 or shape == (T, C, H, W) else shape
    folder = place / "data"
    lay(folder, good["npy"])
    try:
        with np.errstate(all="ignore"):
            x = np.full(shape, float(value)).astype(dtype)
    except (OverflowError, ValueError):
        x = np.full(shape, np.inf)
    np.save(folder / "stats" / f"{name}.npy", x)
    look(forking, folder)


@examples(30)
@given(st.sampled_from(["folder", "link to itself", "link to nothing", "pipe"]), st.data())
def test_what_is_no_file(forking, place, good, kind, data):
    files = good[data.draw(st.sampled_from(LAYOUTS))]
    name = data.draw(st.sampled_from(sorted(files)))
    folder = place / "data"
    lay(folder, files)
    (folder / name).unlink()
    make_no_file(folder / name, kind)
    look(forking, folder)


def make_no_file(path, kind):
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if kind == "link to itself" else "nowhere")
