"""What can be trained by name, and what the cases of science share: data that are kept, batches in one order."""

import dataclasses
import itertools
import json

import pytest
import torch

from dltutorial.config import Recipe, preset
from dltutorial.errors import CourseError, DataError, RecipeError
from dltutorial.science import cases
from dltutorial.train import forecasting
from dltutorial.train.run import check_ranks

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


def test_data_whose_making_was_interrupted_are_made_again(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    calls = []

    def make(folder):
        calls.append(folder)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cases.kept("demo", Plan(), make, 10)
    folder = cases.kept("demo", Plan(), make, 10)
    assert len(calls) == 2 and (folder / "dataset.json").exists()


def make_two(folder):
    (folder / "train").mkdir(exist_ok=True)
    (folder / "train" / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")


@pytest.mark.parametrize("missing", [["train/a.txt"], ["dataset.json"], ["train/a.txt", "dataset.json"]])
def test_of_simulated_data_only_what_is_missing_is_made_again(missing, monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    folder = cases.kept("demo", Plan(), make_two, 10)
    before = {name: (folder / name).read_text() for name in missing}
    own = "b" if "dataset.json" in missing else "mine"
    (folder / "b.txt").write_text(own)
    for name in missing:
        (folder / name).unlink()
    assert cases.kept("demo", Plan(), make_two, 10) == folder
    assert {name: (folder / name).read_text() for name in missing} == before
    assert (folder / "b.txt").read_text() == own
    assert sorted(file.name for file in folder.iterdir()) == [".lock", "b.txt", "dataset.json", "train"]


def test_ones_own_data_are_not_mixed_with_simulated_ones(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    folder = cases.kept("demo", Plan(), make_two, 10)
    for file in (folder / "dataset.json", folder / "b.txt"):
        file.unlink()
    (folder / "train" / "a.txt").write_text("mine")
    with pytest.raises(DataError, match=r"train/a\.txt is not of this data set, and stays; move it away"):
        cases.kept("demo", Plan(), make_two, 10)
    assert sorted(file.name for file in folder.iterdir()) == [".lock", "train"]
    assert (folder / "train" / "a.txt").read_text() == "mine"


def test_what_a_killed_making_has_left_is_no_data_and_goes(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    folder = cases.kept("demo", Plan(), make_two, 10)
    (folder / "dataset.json").unlink()
    (folder / ".killed.partial").mkdir()
    (folder / ".killed.partial" / "b.txt").write_text("half")
    cases.kept("demo", Plan(), make_two, 10)
    assert not list(folder.rglob("*.partial"))


@pytest.mark.parametrize("about", ['{"plan": {"size": 4}}', '{"mine": 1}', "[]", "{"])
def test_a_folder_whose_dataset_json_says_something_else_is_left_as_it_is(about, monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    folder = cases.kept("demo", Plan(), make_two, 10)
    (folder / "dataset.json").write_text(about)
    (folder / "b.txt").write_text("mine")
    with pytest.raises(DataError, match=str(folder)) as refused:
        cases.kept("demo", Plan(), make_two, 10)
    assert "\n" not in str(refused.value)
    assert ((folder / "b.txt").read_text(), (folder / "dataset.json").read_text()) == ("mine", about)


def test_a_list_of_files_that_is_none_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    folder = cases.kept("demo", Plan(), make_two, 10)
    about = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps(about | {"files": 3}))
    with pytest.raises(DataError, match=r"dataset\.json is not readable"):
        cases.kept("demo", Plan(), make_two, 10)


@pytest.fixture
def three(tmp_path):
    """Files of 0, 10 and 1000 bytes."""
    files = [tmp_path / name for name in "abc"]
    for file, n in zip(files, (0, 10, 1000), strict=True):
        file.write_bytes(bytes(n % 251 for n in range(n)))
    return files


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("block", [1, 7, 400, 2**18])
def test_every_byte_of_a_data_set_counts(three, block, monkeypatch):
    monkeypatch.setattr(cases, "_BLOCK_BYTES", block)
    before = cases.digest(three)
    for file, n in ((three[1], 10), (three[2], 1000)):
        for place in range(0, n, 3):
            flip(file, place)
            assert cases.digest(three) != before, (file, place)
            flip(file, place)
    assert cases.digest(three) == before
    assert len({before, cases.digest(three[::-1]), cases.digest(three[1:]), cases.digest([])}) == 4


def test_of_large_files_the_sizes_the_ends_and_blocks_between_count(three, monkeypatch):
    monkeypatch.setattr(cases, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(cases, "_BLOCK_BYTES", 10)
    monkeypatch.setattr(cases, "_SMALL_BYTES", 20)
    before, noticed = cases.digest(three), []
    for place in range(1000):
        flip(three[2], place)
        noticed += [place] if cases.digest(three) != before else []
        flip(three[2], place)
    assert {0, 9, 990, 999} <= set(noticed)
    assert 80 <= len(noticed) <= 120
    assert max(b - a for a, b in itertools.pairwise(noticed)) < 130
    flip(three[1], 5)  # a small file counts whole
    assert cases.digest(three) != before


def test_what_cannot_be_read_has_no_digest(three, tmp_path):
    for file in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=str(file)):
            cases.digest([*three, file])


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
