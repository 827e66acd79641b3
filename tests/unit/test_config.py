import argparse
import dataclasses
import json

import pytest
import torch

from dltutorial.config import PRESETS, preset
from dltutorial.engine.forecasting import make_vit
from dltutorial.engine.recipe import Recipe, add_options
from dltutorial.errors import RecipeError
from dltutorial.models.vit import count_parameters


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_recipe(name):
    recipe = Recipe.of(PRESETS[name])
    assert (recipe.n_channels, recipe.n_lat, recipe.n_lon) == (
        5 * PRESETS[name].n_layers,
        PRESETS[name].n_lat,
        PRESETS[name].n_lon,
    )


def test_gpu_preset_is_the_published_model():
    gpu = PRESETS["gpu"]
    assert (gpu.n_lat, gpu.n_lon, gpu.n_channels) == (360, 720, 20)
    assert (gpu.patch, gpu.dim, gpu.depth, gpu.heads, gpu.global_batch_size) == (8, 384, 12, 8, 16)


def test_the_defaults_are_those_of_the_smoke_preset():
    assert Recipe() == Recipe.of(PRESETS["smoke"])


def test_recipe_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().steps = 3


def test_saved_recipe_comes_back_equal(tmp_path):
    recipe = Recipe.of(PRESETS["laptop"], seed=7, track=("wandb",))
    recipe.save(tmp_path / "recipe.json")
    assert Recipe.load(tmp_path / "recipe.json") == recipe


def test_environment_overrides_auto_but_not_a_named_preset(monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_PRESET", "laptop")
    assert preset("auto").name == "laptop"
    assert preset("gpu").name == "gpu"


def test_every_knob_is_explained_and_an_option():
    assert set(Recipe.knobs()) | {"preset"} == set(json.loads(json.dumps(dataclasses.asdict(Recipe()))))
    assert all(len(field.metadata["text"]) > 10 for field in Recipe.knobs().values())
    parser = argparse.ArgumentParser()
    add_options(parser)
    words = ["--steps", "5", "--no-roll", "--learning-rate", "0.1", "--ddp", "naive", "--track", "wandb", "tensorboard"]
    changed = {"steps": 5, "roll": False, "learning_rate": 0.1, "ddp": "naive", "track": ["wandb", "tensorboard"]}
    assert vars(parser.parse_args(words)) == changed
    assert all(name.replace("_", "-") in parser.format_help() for name in Recipe.knobs())


def test_another_default_alone_leaves_a_knob_its_rules():
    class Bolder(Recipe):
        steps: int = 1000

    with pytest.raises(RecipeError, match="steps must be at least 1"):
        dataclasses.dataclass(frozen=True)(Bolder)(steps=0)


@pytest.mark.parametrize("changes", [{}, {"patch": 4, "depth": 2, "dim": 64}, {"n_channels": 20, "head_bias": False}])
def test_the_parameters_are_those_of_the_model(changes):
    recipe = Recipe.of(PRESETS["smoke"], **changes)
    assert recipe.n_parameters == count_parameters(make_vit(recipe))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_takes_the_least_memory_that_was_told_and_not_many_times_more(fused, precision):
    """What the backward pass keeps, by torch's own word, beside weights, gradients and averages."""
    recipe = Recipe.of(PRESETS["smoke"], fused_attention=fused, patch=4, global_batch_size=2)
    model, kept = make_vit(recipe), {}
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x_BCHW = torch.randn(2, recipe.n_channels, recipe.n_lat, recipe.n_lon)
    half = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), half:
        y_BCHW = model(x_BCHW)
    assert y_BCHW.requires_grad
    told = recipe.least_bytes() - 16 * recipe.n_parameters
    assert told <= sum(kept.values()) <= 20 * told


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_room_in_a_small_machine(name):
    assert Recipe.of(PRESETS[name]).least_bytes(ranks=16 if name == "cluster" else 1) < 2**33
