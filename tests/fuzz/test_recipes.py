"""Knobs of any value, in a call, in a file, on a command line: a recipe that is one, or one line."""

import dataclasses
import json
import math

import pytest
from forking import is_line
from hostile import JSON, PLAIN, TEXT, damaged, examples, json_bytes
from hypothesis import given
from hypothesis import strategies as st

from dltutorial.config import PRESETS, Recipe
from dltutorial.errors import RecipeError

KNOBS = Recipe.knobs()
GOOD = {
    int: st.integers(0, 40),
    float: st.floats(0, 1) | st.integers(0, 1),
    bool: st.booleans(),
    str: st.sampled_from(["auto", "cpu", "lamb", "plain", "fp32"]),
    tuple[str, ...]: st.lists(st.sampled_from(["tensorboard", "wandb"]), max_size=3).map(tuple),
}


def values(name):
    """Of a knob: often one that it can take."""
    field = KNOBS[name]
    fitting = st.sampled_from(field.metadata["choices"]) if field.metadata["choices"] else GOOD[field.type]
    return st.one_of(fitting, fitting, fitting, PLAIN, JSON)


@st.composite
def knobs(draw, most=5):
    names = draw(st.lists(st.sampled_from([*KNOBS]), max_size=most, unique=True))
    return {name: draw(values(name)) for name in names}


def recipe_or_line(make):
    try:
        recipe = make()
    except RecipeError as error:
        assert is_line(str(error)), str(error)
        return None
    for name, field in KNOBS.items():
        value = getattr(recipe, name)
        assert isinstance(value, int | float if field.type is float else getattr(field.type, "__origin__", field.type))
        assert field.type is not float or math.isfinite(value)
    return recipe


@examples(400)
@given(st.sampled_from([*PRESETS.values()]), knobs(), st.dictionaries(TEXT, JSON, max_size=1))
def test_a_call_gives_a_recipe_or_one_line_and_what_is_saved_comes_back(place, preset, knobs, others):
    file = place / "saved.json"
    if recipe := recipe_or_line(lambda: Recipe.of(preset, **knobs, **others)):
        recipe.save(file)
        assert Recipe.load(file) == recipe


@examples(400)
@given(knobs(), st.dictionaries(TEXT, JSON, max_size=1) | st.builds(lambda name: {"preset": name}, PLAIN))
def test_a_file_gives_a_recipe_or_one_line(place, knobs, others):
    file = place / "knobs.json"
    file.write_text(json.dumps({"preset": "smoke"} | knobs | others))
    if recipe := recipe_or_line(lambda: Recipe.load(file)):
        recipe.save(file)
        assert Recipe.load(file) == recipe


GOOD_FILE = json.dumps(dataclasses.asdict(Recipe()), indent=2).encode()


@examples(200)
@given(json_bytes() | damaged(GOOD_FILE))
def test_any_bytes_give_a_recipe_or_one_line(place, content):
    file = place / "any.json"
    file.write_bytes(content)
    recipe_or_line(lambda: Recipe.load(file))


WORDS = st.sampled_from(["nan", "-inf", "1e999", "0x10", "1_0", "", " 3", "٣", "9" * 5000, "-0", "1e-400", "True"])


@st.composite
def options(draw):
    """Knobs as options; every third has a value that is none."""
    words = []
    for name in draw(st.lists(st.sampled_from([*KNOBS]), min_size=1, max_size=4)):
        option = f"--{name.replace('_', '-')}"
        if KNOBS[name].type is bool:
            words.append(draw(st.sampled_from([option, option.replace("--", "--no-", 1)])))
        elif draw(st.integers(0, 2)):
            value = draw(values(name))
            words += [option, *(map(str, value) if isinstance(value, tuple) else [str(value)[:300]])]
        else:
            words += [option, draw(WORDS | TEXT)]
    return [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]


@examples(150)
@given(options())
def test_a_command_line_gives_a_recipe_or_one_line(forking, place, words):
    """The data set is missing: what is right with the knobs is refused for that."""
    around = {"env": {"DLTUTORIAL_RUNS": str(place / "runs"), "RANK": None, "WORLD_SIZE": None}, "cwd": str(place)}
    line = ["train", "--preset", "smoke", "--data", "nowhere", "--name", "r", *words]
    done = forking("command_line", line, **around)
    assert done.value_or_line() in (1, 2), done
    assert is_line(done.err.rstrip("\n")), done.err
    assert not (place / "runs").exists()


def test_fuzzing_finds_a_recipe_that_does_not_come_back(place, monkeypatch):
    """These tests can fail."""
    monkeypatch.setattr(Recipe, "save", lambda self, file: file.write_text('{"preset": "smoke", "steps": 77}'))
    with pytest.raises(AssertionError):
        test_a_call_gives_a_recipe_or_one_line_and_what_is_saved_comes_back(place)
