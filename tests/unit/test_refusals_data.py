"""What the data room refuses: one clear line each, before anything is written.

Damaged files are in test_formats and test_store.
"""

import dataclasses
from pathlib import Path

import pytest

from dltutorial.config import PRESETS
from dltutorial.data import convert, formats, lenses, loaders, sampling, store, surveys, weather
from dltutorial.data.flow import Flow
from dltutorial.data.loaders import LoaderConfig
from dltutorial.errors import DataError, RecipeError

TINY = dataclasses.replace(PRESETS["smoke"], n_lat=16, n_lon=32, years=(1, 1, 1), snapshots=2)
NO_LAYOUT = (
    *("parquet", "npy-chunk1", "hdf5", "hdf5-contiguous-gzip4", "hdf5-gzip4", "zarr", "zarr-contiguous", "hdf5-chunk0"),
    *("hdf5-chunk1-zstd", "zarr-chunk1-lzf", "hdf5-chunk1-gzip10", "hdf5-chunk1-lzf4"),
)
# What it is, the call, the error, words of its line. Paths begin in an empty folder.
ROWS = [
    *((name, lambda n=name: formats.Layout.of(n), RecipeError, f"no layout '{name}'; choose n") for name in NO_LAYOUT),
    ("no known kind of file", lambda: formats.open_year(Path("a.nc")), DataError, r"a\.nc is none of \*\.h5, \*\.npy"),
    ("no rank", lambda: sampling.endless(10, 5, rank=2, world_size=2), RecipeError, "rank 2 of 2"),
    ("a rank below 0", lambda: sampling.endless(10, 5, rank=-1), RecipeError, "ranks count from 0"),
    ("less than one sample a rank", lambda: sampling.endless(10, 2, world_size=3), RecipeError, "shared by 3 ranks"),
    ("a batch above all", lambda: sampling.endless(10, 11), DataError, "batch of 11 needs more than the 10 samples"),
    ("no such way", lambda: LoaderConfig("quick"), RecipeError, "choose one of naive, open"),
    ("workers beside one block", lambda: LoaderConfig("batched", workers=1), RecipeError, "reads in one thread"),
    ("workers below 0", lambda: LoaderConfig(workers=-1), RecipeError, "no negative number"),
    ("no such loader", lambda: loaders.loader_config("fast"), RecipeError, "no loader 'fast'; choose one of naive"),
    ("an odd grid", lambda: Flow(31, 64), RecipeError, "take even numbers from 8"),
    ("no grid", lambda: Flow(32, 0), RecipeError, "take even numbers from 8"),
    ("no process", lambda: weather.ensure(TINY, Path("x"), processes=0), RecipeError, "take at least 1"),
    ("no such device", lambda: weather.ensure(TINY, Path("x"), device="abacus"), RecipeError, "auto, cpu or cuda"),
    ("a seed below 0", lambda: weather.ensure(TINY, Path("x"), seed=-1), RecipeError, "take 0 or more"),
    *(
        (name, lambda n=name: weather.ensure(TINY, Path(n), progress=False), DataError, f"{name}.*; choose")
        for name in ("/proc/weather", "/dev/null", "/dev/null/weather")
    ),
    ("one image", lambda: lenses.simulate(1), RecipeError, "take at least 2 of 8 × 8"),
    ("tiny images", lambda: lenses.simulate(2, size=7), RecipeError, "take at least 2 of 8 × 8"),
    *(
        (f"no {part} part", lambda p=part: surveys.lenses(**{p: 0}), RecipeError, "each part needs at least 1")
        for part in ("train", "valid", "test")
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_cannot_be_is_one_line(call, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d, out: convert.convert(d, "hdf5-chunk11", out), r"1979\.h5 has 10 snapshots, so no chunk can hold 11"),
        (lambda d, out: loaders.make_loader(store.open_split(d), 99, "naive"), "99 needs more than the 18 samples"),
        (lambda d, out: loaders.make_loader(store.open_split(d), 99, "best"), "99 needs more than the 18 samples"),
    ],
)
def test_what_cannot_be_had_of_these_data_is_one_line(call, words, tiny_data, tmp_path):
    with pytest.raises(DataError, match=words) as caught:
        call(tiny_data, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
