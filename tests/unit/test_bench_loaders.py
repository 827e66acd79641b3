import contextlib
import functools
import re

import pytest

from dltutorial import cli
from dltutorial.config import PRESETS
from dltutorial.course.bench import table
from dltutorial.course.benches import loaders
from dltutorial.data import convert, loader_ladder, store


@pytest.fixture
def tiny_ladder(tiny_data, tmp_path, monkeypatch):
    """The bench on the tiny data, each turn as short as can be."""
    splits = {}
    for name in loader_ladder.LAYOUTS:
        folder = convert.convert(tiny_data, name.replace("chunk16", "chunk5"), tmp_path / name, progress=False)
        splits[name] = store.open_split(folder, "train")
    monkeypatch.setattr(loader_ladder, "prepare", lambda preset: splits)
    monkeypatch.setattr(loader_ladder, "rates", functools.partial(loader_ladder.rates, phase_s=0.005))


def test_every_rung_and_layout_has_its_row(tiny_ladder, one_thread):
    rows = list(loaders(PRESETS["smoke"], 1))
    names = [row.what for row in rows]
    assert len(set(names)) == len(names)
    assert names[: len(loader_ladder.RUNGS)] == [rung.cause for rung in loader_ladder.RUNGS]
    assert "copy of the same bytes from the page cache" in names
    assert {f"lean loader, {name}" for name in loader_ladder.LAYOUTS} <= set(names)
    assert all(row.unit == "samples/s" and min(row.samples) > 0 for row in rows)
    assert all(row.predicted > 0 for row in rows[: len(loader_ladder.RUNGS)])
    assert "of the copy" in str(table(rows))


def test_data_convert_writes_a_data_set_that_checks(tiny_data, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["data", "convert", "--source", str(tiny_data), "--layout", "hdf5-chunk2-gzip1", "--out", str(out)]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert cli.main(["data", "check", "--source", str(out)]) == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--layout", "hdf5-chunk0"], "no layout 'hdf5-chunk0'"),
        (["--layout", "nonsense"], "no layout 'nonsense'"),
        ([], "required: --layout"),
        (["--layout", "hdf5-chunk77"], "no chunk can hold 77"),
    ],
)
def test_data_convert_refuses_in_one_line(options, why, tiny_data, tmp_path, capsys):
    command = ["data", "convert", "--source", str(tiny_data), "--out", str(tmp_path / "out"), *options]
    with contextlib.suppress(SystemExit):
        assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert re.search(why, said)
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
