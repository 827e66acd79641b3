"""What can be trained by name, and what the cases of science share: data that are kept, batches in one order."""

import dataclasses
import itertools
import json

import pytest
import torch

from dltutorial.config import preset
from dltutorial.engine import forecasting
from dltutorial.engine.recipe import Recipe
from dltutorial.engine.run import check_ranks
from dltutorial.errors import CourseError, DataError, RecipeError
from dltutorial.science import cases

SMALL = Recipe(global_batch_size=4, n_lat=16, n_lon=16)


@dataclasses.dataclass(frozen=True)
class Plan:
    size: int = 3
    version: int = 1


def read(indices, seeds):
    """Picklable, as a loading process wants it."""
    return torch.tensor(indices), seeds % 97


def taken(n_batches, recipe=SMALL, **place):
    return [x.tolist() for x, _ in itertools.islice(cases.batches(10, read, recipe, **place), n_batches)]


def test_the_weather_is_a_case_like_any_other():
    case = cases.case("weather")
    assert case is forecasting
    assert case.make_recipe(preset("smoke"), {"steps": 3}, None).n_channels == 5
    for name in ("SCORE", "make_recipe", "ensure", "make_task", "notes"):
        assert hasattr(case, name)


@pytest.mark.parametrize("knobs", [{"network": "unet"}, {"samples": 50}])
def test_the_weather_ignores_no_knob_of_others(knobs):
    with pytest.raises(RecipeError, match="is a science case's"):
        forecasting.make_recipe(preset("smoke"), knobs, None)


@pytest.mark.parametrize("name", ["wether", "", "../weather", 3, None, "cases"])
def test_an_unknown_case_is_one_line_that_names_the_known_ones(name):
    with pytest.raises(RecipeError, match=r"task must be one of weather, climate"):
        cases.case(name)


@pytest.mark.parametrize("knobs", [{"tensor": 2}, {"pipeline": 2, "accumulate": 2}, {"context": 2}])
def test_what_has_no_blocks_is_not_cut(knobs):
    with pytest.raises(RecipeError, match=f"{next(iter(knobs))}=2.* task=climate cannot be cut so"):
        check_ranks(dataclasses.replace(SMALL, task="climate", **knobs), 2)


@pytest.mark.parametrize("knobs", [{"task": "pinn", "dim": 30, "heads": 4}, {"task": "surrogate", "n_lat": 7}])
def test_a_network_without_heads_asks_for_none(knobs):
    with pytest.raises(RecipeError, match=r"must (divide dim|be divisible by patch)"):
        Recipe.of(preset("laptop"), **knobs | {"task": "weather"})
    assert vars(Recipe.of(preset("laptop"), **knobs)).items() >= knobs.items()


def test_data_are_made_once_for_each_plan(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    made = []

    def make(folder):
        made.append(folder)
        (folder / "a.txt").write_text("a")

    first = cases.kept("demo", Plan(), make, 10)
    assert cases.kept("demo", Plan(), make, 10) == first and len(made) == 1
    assert cases.kept("demo", Plan(size=4), make, 10) != first and len(made) == 2
    assert json.loads((first / "dataset.json").read_text())["plan"] == {"size": 3, "version": 1}


def test_data_larger_than_the_disk_are_refused_before_they_are_made(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    with pytest.raises(DataError, match="needed; make room"):
        cases.kept("demo", Plan(), lambda folder: pytest.fail("made"), 10**18)


def test_a_login_node_simulates_no_case(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    monkeypatch.setenv("DLTUTORIAL_NODE", "login")
    with pytest.raises(CourseError, match="sbatch"):
        cases.kept("demo", Plan(), lambda folder: pytest.fail("made"), 10)


def test_an_epoch_has_each_sample_once_and_the_next_another_order():
    four = taken(4)
    assert all(len(set(itertools.chain(*epoch))) == 8 for epoch in (four[:2], four[2:]))
    assert four[:2] != four[2:]


def test_a_resumed_run_goes_on_with_the_very_batches():
    assert taken(5)[2:] == taken(3, skip=2)


def test_loading_processes_change_nothing():
    assert taken(3, dataclasses.replace(SMALL, workers=1)) == taken(3)


def test_ranks_share_out_the_batches_of_one_process(monkeypatch):
    whole, parts = taken(3), []
    for rank in range(2):
        monkeypatch.setattr(cases, "data_rank", lambda recipe, rank=rank: rank)
        monkeypatch.setattr(cases, "data_world_size", lambda recipe: 2)
        parts.append(taken(3))
    assert [sorted(a + b) for a, b in zip(*parts, strict=True)] == [sorted(batch) for batch in whole]


def test_an_augmentation_has_a_seed_of_its_own_in_every_epoch():
    seeds = [seed for _, batch in itertools.islice(cases.batches(4, read, SMALL), 3) for seed in batch.tolist()]
    assert len(set(seeds)) > 6
