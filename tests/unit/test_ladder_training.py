"""The ladder: rungs as data, a race that is fair and finds what is wrong, and the chapter's arithmetic of parts."""

import ast
import dataclasses
import functools
import itertools
import json
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from dltutorial import machine
from dltutorial.config import PRESETS
from dltutorial.course import benches
from dltutorial.data import weather
from dltutorial.data.loaders import make_loader
from dltutorial.errors import CourseError
from dltutorial.profile.timing import Timing
from dltutorial.train import forecasting, ladder, loop
from dltutorial.train.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"n_channels": 3, "n_lat": 16, "n_lon": 24, "dim": 16, "depth": 1, "heads": 2, "global_batch_size": 2}
CHAPTER = Path(__file__).parents[2] / "notebooks" / "07_the_ladder.ipynb"


@pytest.fixture
def start():
    return ladder.baseline(PRESETS["smoke"], "cpu", **SIZES)


@pytest.fixture
def data(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    return ladder.data(tiny_data, ladder.PLAIN)


def possible(start, every=2):
    """The rungs that can be taken here and need no compiler."""
    without = {*ladder.missing(start), "compile"}
    return {name: knobs for name, knobs in ladder.rungs("cpu", every).items() if name not in without}


def test_the_baseline_is_what_a_newcomer_writes(start):
    assert (start.loader, start.precision, start.compile, start.log_every) == ("naive", "fp32", "off", 1)
    assert not start.fused_attention
    assert start.optimizer_impl == "for-loop"


def test_attention_that_does_not_fit_is_fused_from_the_start():
    start = ladder.baseline(PRESETS["gpu"], "cpu")
    assert start.fused_attention
    assert "not fit" in ladder.missing(start)["attention"]


def test_a_rung_that_cannot_be_here_says_why(start, monkeypatch):
    monkeypatch.setattr(machine, "cpu_units", lambda: ("avx2",))
    monkeypatch.setattr(ladder.compiling, "missing", lambda device: "a C++ compiler (g++)")
    missing = ladder.missing(start)
    assert set(missing) == {"loss", "precision", "compile", "graph"}
    assert missing["compile"] == "needs a C++ compiler (g++)"


def test_units_for_low_precision_are_read_from_the_machine(start, monkeypatch):
    monkeypatch.setattr(machine, "cpu_units", lambda: ("avx512f", "avx512_bf16"))
    assert ladder.rungs("cpu")["precision"] == {"precision": "bf16"}
    assert "precision" not in ladder.missing(start)
    gpu = machine.Accelerator("old", "CUDA", 1, (7, 0), ("fp16",))
    monkeypatch.setattr(machine, "accelerators", lambda: (gpu,))
    assert ladder.rungs("cuda")["precision"] == {"precision": "fp16"}


def test_climbing_keeps_every_knob_below(start):
    rungs = ladder.rungs("cpu")
    variants = ladder.variants(start, rungs)
    assert list(variants)[:3] == ["baseline", "only loader", "only loss"]
    assert list(variants)[-1] == "+ graph" and "+ loader" not in variants  # it is the first rung alone
    assert all(getattr(variants["+ graph"], knob) == value for of in rungs.values() for knob, value in of.items())
    assert variants["only optimizer"] == dataclasses.replace(start, optimizer_impl="fused")


def test_a_step_is_told_from_its_halves(start, data, monkeypatch):
    fixed = {"load": Timing((3.0, 2.5)), "update": Timing((2.0, 4.0))}
    monkeypatch.setattr(ladder, "alternate", lambda halves, repeats, device: {name: fixed[name] for name in halves})
    assert ladder.halves_s(start, data) == 4.5
    monkeypatch.undo()
    assert all(ladder.halves_s(recipe, data, 1) > 0 for recipe in ladder.variants(start, possible(start)).values())


def chapter_step_s(**names):
    """The chapter's function of that name, above the given names."""
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    cell = next("".join(cell["source"]) for cell in cells if "def step_s(" in "".join(cell["source"]))
    tree = ast.parse(TransformerManager().transform_cell(cell))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    exec(compile(tree, CHAPTER.name, "exec"), names)
    return names["step_s"]


PARTS = {"load": 2.0, "update": 7.0, "weights": 1.0}
KNOBS = {"loader": ("load", 0.1), "precision": ("update", 0.5), "compile": ("update", 0.5), "optimizer": ("weights", 0)}


@pytest.mark.parametrize(
    ("device", "names", "seconds"),
    [
        ("cpu", (), 10.0),
        ("cpu", ("loader",), 8.2),
        ("cpu", ("precision", "compile"), 4.75),
        ("cpu", ("optimizer", "loader", "precision"), 3.7),
        ("cuda", (), 8.0),
        ("cuda", ("loader",), 8.0),
        ("cuda", ("optimizer", "precision", "compile"), 2.0),
    ],
)
def test_the_chapter_adds_parts_and_a_device_hides_what_is_loaded_meanwhile(device, names, seconds):
    acts_on, factor = ({name: knob[i] for name, knob in KNOBS.items()} for i in (0, 1))
    step_s = chapter_step_s(part_s=PARTS, acts_on=acts_on, factor=factor, device=device)
    assert step_s(*names) == pytest.approx(seconds)


def test_a_race_measures_all_variants_and_their_losses_agree(start, data):
    variants = ladder.variants(start, possible(start)) | {"seldom": dataclasses.replace(start, log_every=2)}
    results = ladder.compare(variants, data, rounds=2, turn_s=0.0)
    assert list(results) == list(variants)
    assert all(len(result.samples_per_s) == 2 and result.updates == 6 for result in results.values())
    loss = results["baseline"].final_loss
    assert all(result.final_loss == pytest.approx(loss, rel=1e-3) for result in results.values())
    assert all(result.peak_bytes is None for result in results.values())


def test_turns_change_nothing_of_a_run(start, data):
    variants = {"naive": start, "best": dataclasses.replace(start, loader="best")}
    raced = ladder.compare(variants, data, rounds=3, turn_s=0.0)["best"]
    batches = make_loader(data["naive"], start.global_batch_size, "lean", roll=True)
    task = Task(forecasting.build_model(start), lambda skip: batches, forecasting.squared_error)
    *_, last = itertools.islice(loop.loop(task, start), raced.updates)
    assert raced.final_loss == pytest.approx(last.loss, rel=1e-4)


def test_a_variant_that_trains_otherwise_is_found(start, data):
    variants = {"baseline": start, "slower rate": dataclasses.replace(start, learning_rate=1e-4)}
    right, wrong = ladder.compare(variants, data, rounds=2, turn_s=0.0).values()
    assert abs(wrong.final_loss / right.final_loss - 1) > 1e-2


@pytest.mark.ci
def test_a_race_too_short_to_compare_is_refused(start, data):
    seldom = dataclasses.replace(start, log_every=50)
    with pytest.raises(CourseError, match="too few to compare"):
        ladder.compare({"baseline": start, "seldom": seldom}, data, rounds=1, turn_s=0.0)


@pytest.mark.ci
def test_the_bench_gives_a_row_for_every_variant(start, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    monkeypatch.setattr(machine, "device", lambda: "cpu")
    monkeypatch.setattr(ladder, "baseline", lambda preset, device: start)
    monkeypatch.setattr(ladder, "missing", lambda start: dict.fromkeys(("loss", "precision", "compile", "graph"), "x"))
    monkeypatch.setattr(weather, "ensure", lambda preset: tiny_data)
    quick = functools.partial(ladder.compare, turn_s=0.0)
    monkeypatch.setattr(ladder, "compare", lambda *args, turn_s, **knobs: quick(*args, **knobs))
    rows = list(benches.ladder(PRESETS["smoke"], 4))
    assert [row.what for row in rows][:2] == ["baseline", "only loader"]
    assert rows[-1].what == "+ optimizer"
    assert all(row.unit == "samples/s" and row.predicted > 0 for row in rows)
    assert {"gain, quickest rounds", "peak memory", "final loss"} <= set(rows[0].more)
