import gzip
import json

import pytest
import torch

from dltutorial.config import Recipe, preset
from dltutorial.data import weather
from dltutorial.data.loaders import LOADERS
from dltutorial.profile import trace
from dltutorial.train import forecasting, profiled

OTHERS = {
    "notes": ("notes.json", b'{"cells": "mine"}\n'),
    "a list": ("notes.json", b"[1, 2]"),
    "a text that names the key": ("notes.json", b'"traceEvents"'),
    "no JSON": ("notes.json", b"mine"),
    "nothing yet": ("notes.json", b""),
    "notes, packed": ("notes.json.gz", gzip.compress(json.dumps({"cells": "mine"}).encode())),
    "notes that are not packed": ("notes.json.gz", b'{"cells": "mine"}\n'),
}


def test_a_profiled_step_names_its_parts(tiny_data, one_thread):
    recipe = Recipe(n_lat=16, n_lon=24, n_channels=3, dim=16, depth=1, global_batch_size=4, device="cpu")
    step = profiled.training_step(recipe, tiny_data)
    names = {event.name for event in trace.take(step, steps=1, warmup=1).events if event.category == "range"}
    assert {"step", "load", "to device", "forward", "backward", "optimizer"} <= names


def test_the_profiled_run_is_the_one_that_was_asked_for(tiny_data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(weather, "ensure", lambda sizes, progress: tiny_data)
    monkeypatch.setattr(profiled, "training_step", lambda recipe, data: asked.append(recipe) or (lambda: torch.ones(2)))
    knobs = "--loader best --precision bf16 --compile default --optimizer-impl foreach --no-cuda-graph --device cpu"
    file = tmp_path / "trace.json"
    assert profiled.main(["--preset", "smoke", "--steps", "1", "--trace", str(file), *knobs.split()]) == 0
    assert len(trace.read(file).steps) == 1
    assert asked == [
        Recipe.of(preset("smoke"), loader="best", precision="bf16", compile="default", optimizer_impl="foreach",
                  device="cpu")
    ]  # fmt: skip


def test_a_case_of_science_is_profiled_where_it_is_asked_for(tmp_path, monkeypatch, one_thread):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path / "data"))
    file = tmp_path / "trace.json"
    words = ["--preset", "smoke", "--steps", "1", "--warmup", "1", "--trace", str(file), "--device", "cpu"]
    assert profiled.main([*words, "--task", "pinn"]) == 0
    assert "aten::tanh" in {event.name for event in trace.read(file).events}  # the weather's network has none
    (made,) = (tmp_path / "data").glob("*/dataset.json")
    assert made.parent.name.startswith("pinn-")


@pytest.mark.parametrize("held", OTHERS)
def test_what_is_no_trace_stays_and_no_data_are_made_for_it(held, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(weather, "ensure", lambda *_, **__: pytest.fail("data were made"))
    name, content = OTHERS[held]
    file = tmp_path / name
    file.write_bytes(content)
    assert profiled.main(["--preset", "smoke", "--steps", "1", "--warmup", "1", "--trace", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"dltutorial: {file} is no trace that can be read, and stays as it is; give another name"
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (content, [file])


def test_a_name_that_no_trace_has_is_told_before_data_are_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(weather, "ensure", lambda *_, **__: pytest.fail("data were made"))
    assert profiled.main(["--preset", "smoke", "--trace", str(tmp_path / "trace.txt")]) == 2
    assert "choose such a name" in capsys.readouterr().err


def test_it_loads_with_the_loader_of_the_recipe(tiny_data, one_thread, monkeypatch):
    used = []
    monkeypatch.setattr(forecasting.loaders, "make_loader", lambda *args, **how: used.append(args[2]) or iter(()))
    recipe = Recipe(n_lat=16, n_lon=24, n_channels=3, dim=16, depth=1, global_batch_size=4, device="cpu", loader="lean")
    profiled.training_step(recipe, tiny_data)
    assert used == [LOADERS["lean"]]
