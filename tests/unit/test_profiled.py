import torch

from dltutorial.config import Recipe, preset
from dltutorial.data.loaders import LOADERS
from dltutorial.profile import trace
from dltutorial.train import profiled


def test_a_profiled_step_names_its_parts(tiny_data, one_thread):
    recipe = Recipe(n_lat=16, n_lon=24, n_channels=3, dim=16, depth=1, global_batch_size=4, device="cpu")
    step = profiled.training_step(recipe, tiny_data)
    names = {event.name for event in trace.take(step, steps=1, warmup=1).events if event.category == "range"}
    assert {"step", "load", "to device", "forward", "backward", "optimizer"} <= names


def test_the_profiled_run_is_the_one_that_was_asked_for(tiny_data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(profiled.weather, "ensure", lambda sizes: tiny_data)
    monkeypatch.setattr(profiled, "training_step", lambda recipe, data: asked.append(recipe) or (lambda: torch.ones(2)))
    knobs = "--loader best --precision bf16 --compile default --optimizer-impl foreach --no-cuda-graph --device cpu"
    file = tmp_path / "trace.json"
    assert profiled.main(["--preset", "smoke", "--steps", "1", "--trace", str(file), *knobs.split()]) == 0
    assert len(trace.read(file).steps) == 1
    assert asked == [
        Recipe.of(preset("smoke"), loader="best", precision="bf16", compile="default", optimizer_impl="foreach",
                  device="cpu")
    ]  # fmt: skip


def test_it_loads_with_the_loader_of_the_recipe(tiny_data, one_thread, monkeypatch):
    used = []
    loaders = profiled.forecasting.loaders
    monkeypatch.setattr(loaders, "make_loader", lambda *args, **how: used.append(args[2]) or iter(()))
    recipe = Recipe(n_lat=16, n_lon=24, n_channels=3, dim=16, depth=1, global_batch_size=4, device="cpu", loader="lean")
    profiled.training_step(recipe, tiny_data)
    assert used == [LOADERS["lean"]]
