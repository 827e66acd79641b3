"""The ladder: rungs as data, predictions from parts, a race that is fair and finds what is wrong."""

import dataclasses
import functools
import itertools
import math

import pytest
import torch

from dltutorial import machine
from dltutorial.config import PRESETS, Recipe
from dltutorial.course import benches
from dltutorial.data import weather
from dltutorial.data.loaders import make_loader
from dltutorial.errors import CourseError
from dltutorial.train import forecasting, ladder, loop, step_breakdown
from dltutorial.train.step_breakdown import Effect, StepParts, climb
from dltutorial.train.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"n_channels": 3, "n_lat": 16, "n_lon": 24, "dim": 16, "depth": 1, "heads": 2, "global_batch_size": 2}
SERIAL = StepParts({"load": 2.0, "products": 4.0, "attention": 3.0, "rest": 1.0})


@pytest.fixture
def start():
    return ladder.baseline(PRESETS["smoke"], "cpu", layout=ladder.PLAIN, **SIZES)


def variants_of(start, steps):
    return {name: start.taking(*rungs) for name, rungs in ladder.routes(steps).items()}


def test_the_baseline_is_what_a_newcomer_writes(start):
    recipe = start.recipe
    assert (recipe.loader, recipe.precision, recipe.compile, recipe.log_every) == ("naive", "fp32", "off", 1)
    assert not recipe.fused_attention
    assert recipe.optimizer_impl == "for-loop"


def test_attention_that_does_not_fit_is_fused_from_the_start(monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: (10**9, 10**6))
    start = ladder.baseline(PRESETS["smoke"], "cpu")
    assert start.recipe.fused_attention
    (rung,) = [rung for rung in ladder.rungs(start, "cpu") if rung.name == "attention"]
    assert "not fit" in rung.missing


def test_the_published_attention_weights_are_counted():
    assert ladder.attention_bytes(Recipe.of(PRESETS["gpu"])) == 4 * 16 * 8 * 4050**2 * 14


def test_a_rung_that_cannot_be_here_says_why_and_is_left_out(start, monkeypatch):
    monkeypatch.setattr(machine, "cpu_units", lambda: ("avx2",))
    monkeypatch.setattr(ladder.compiling, "missing", lambda device: "a C++ compiler (g++)")
    steps = ladder.rungs(start, "cpu")
    missing = {rung.name: rung.missing for rung in steps if rung.missing}
    assert set(missing) == {"loss", "precision", "compile", "graph"}
    assert missing["compile"] == "needs a C++ compiler (g++)"
    assert set(missing).isdisjoint(name.split()[-1] for name in ladder.routes(steps))


def test_units_for_bf16_are_read_from_the_flags(monkeypatch):
    monkeypatch.setattr(machine, "cpu_units", lambda: ("avx512f", "avx512_bf16"))
    assert ladder.best_precision("cpu") == ("bf16", "")
    gpu = machine.Accelerator("old", "CUDA", 1, (7, 0), ("fp16",))
    monkeypatch.setattr(machine, "accelerators", lambda: (gpu,))
    assert ladder.best_precision("cuda") == ("fp16", "")
    assert ladder.side_rungs("cuda") == ()


def test_climbing_keeps_every_knob_below(start):
    routes = ladder.routes(ladder.rungs(start, "cpu"))
    *_, rungs = routes.values()
    top = start.taking(*rungs)
    for rung in rungs:
        assert all(getattr(top.recipe, knob) == value for knob, value in rung.knobs.items())
    assert top.layout == ladder.MAPPED
    only = start.taking(*routes["only optimizer"])
    assert only == ladder.Variant(dataclasses.replace(start.recipe, optimizer_impl="fused"), start.layout)


def test_parts_add_up_on_a_processor_and_amdahl_follows():
    assert SERIAL.whole_s == 10
    assert climb(SERIAL, [Effect("loader", {"load": 0.5})]) == {"loader": pytest.approx(1 / (0.8 + 0.1))}
    assert SERIAL.share("products") == 0.4


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [({"waits": True}, 3 + 4), ({}, max(3 + 1, 4)), ({"ahead": True}, 4), ({"ahead": True, "waits": True}, 4)],
)
def test_with_a_device_loading_and_launching_may_hide(flags, seconds):
    step = StepParts({"load": 3.0, "launch": 1.0, "products": 4.0}, on_device=True, **flags)
    assert step.whole_s == seconds


def test_a_graph_gains_where_launches_are_the_limit():
    step = StepParts({"load": 0.1, "launch": 5.0, "products": 1.0}, on_device=True, ahead=True)
    assert climb(step, [Effect("graph", {"launch": 0.0})])["graph"] == 5


def test_the_total_does_not_depend_on_the_order_but_each_gain_does():
    effects = [Effect("a", {"products": 0.5}), Effect("b", {"products": 0.5, "load": 0.1}), Effect("c", {"rest": 0.2})]
    there, back = step_breakdown.climb(SERIAL, effects), step_breakdown.climb(SERIAL, effects[::-1])
    assert there["c"] == pytest.approx(back["a"])
    assert there["a"] != pytest.approx(back["a"] / back["b"])


def test_the_best_order_is_worked_out_again_and_leaves_out_what_harms():
    effects = [
        Effect("bf16", {"products": 0.3}),
        Effect("sparse", {"products": 0.4}),
        Effect("fused", {"attention": 0.3}),
        Effect("bad", {"rest": 2.0}),
    ]
    order = step_breakdown.best_order(SERIAL, effects)
    assert [name for name, _ in order] == ["bf16", "fused", "sparse"]
    assert order[-1][1] == pytest.approx(2 + 4 * 0.3 * 0.4 + 3 * 0.3 + 1)


@pytest.mark.parametrize("fused", [False, True])
def test_every_rung_gets_an_effect_and_the_parts_make_the_step(start, tiny_data, tmp_path, monkeypatch, fused):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    start = dataclasses.replace(start, recipe=dataclasses.replace(start.recipe, fused_attention=fused))
    steps = ladder.rungs(start, "cpu")
    data = ladder.data(tiny_data, variants_of(start, steps))
    account = step_breakdown.measure(start, steps, data, repeats=2)
    assert set(account.effects) == {rung.name for rung in steps}
    assert all(seconds >= 0 for seconds in account.step.seconds.values())
    assert account.predicted(()) == 1
    assert all(math.isfinite(account.predicted((rung,))) for rung in steps)


def test_a_race_measures_all_variants_and_their_losses_agree(start, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    steps = [rung for rung in ladder.rungs(start, "cpu", every=2) if rung.name != "compile"]
    slow = start.taking(ladder.Rung("loss", "", {"log_every": 2}))
    variants = variants_of(start, steps) | {"seldom": slow}
    results = ladder.compare(variants, ladder.data(tiny_data, variants), rounds=2, turn_s=0.0)
    assert all(len(result.samples_per_s) == 2 and result.updates == 6 for result in results.values())
    assert ladder.loss_difference(results) < 1e-3
    assert ladder.gains(results)["baseline"] == 1
    assert all(result.peak_bytes is None for result in results.values())


def test_turns_change_nothing_of_a_run(start, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    variants = {"naive": start, "best": start.taking(ladder.rungs(start, "cpu")[0])}
    data = ladder.data(tiny_data, variants)
    raced = ladder.compare(variants, data, rounds=3, turn_s=0.0)["best"]
    batches = make_loader(data[ladder.PLAIN], start.recipe.global_batch_size, "lean", roll=True)
    task = Task(forecasting.build_model(start.recipe), lambda skip: batches, forecasting.squared_error)
    *_, last = itertools.islice(loop.loop(task, start.recipe), raced.updates)
    assert raced.final_loss == pytest.approx(last.loss, rel=1e-4)


def test_a_variant_that_trains_otherwise_is_found(start, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    other = dataclasses.replace(start, recipe=dataclasses.replace(start.recipe, learning_rate=1e-4))
    variants = {"baseline": start, "slower rate": other}
    results = ladder.compare(variants, ladder.data(tiny_data, variants), rounds=2, turn_s=0.0)
    assert ladder.loss_difference(results) > 1e-2


def test_a_race_too_short_to_compare_is_refused(start, tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    data = ladder.data(tiny_data, {"baseline": start})
    with pytest.raises(CourseError, match="at least one round"):
        ladder.compare({"baseline": start}, data, rounds=0)
    seldom = start.taking(ladder.Rung("loss", "", {"log_every": 50}))
    with pytest.raises(CourseError, match="too few to compare"):
        ladder.compare({"baseline": start, "seldom": seldom}, data, rounds=1, turn_s=0.0)


def test_the_bench_gives_a_row_for_every_variant(tiny_data, tmp_path, monkeypatch, start):
    monkeypatch.setenv("DLTUTORIAL_DATA", str(tmp_path))
    steps = tuple(rung for rung in ladder.rungs(start, "cpu") if rung.name != "compile")
    monkeypatch.setattr(machine, "device", lambda: "cpu")
    monkeypatch.setattr(ladder, "baseline", lambda preset, device, layout: start)
    monkeypatch.setattr(ladder, "rungs", lambda start, device: steps)
    monkeypatch.setattr(ladder, "side_rungs", lambda device: ())
    monkeypatch.setattr(weather, "ensure", lambda preset: tiny_data)
    quick = functools.partial(ladder.compare, turn_s=0.0)
    monkeypatch.setattr(ladder, "compare", lambda *args, turn_s, **knobs: quick(*args, **knobs))
    rows = list(benches.ladder(PRESETS["smoke"], 4))
    assert [row.what for row in rows][:2] == ["baseline", "only loader"]
    assert rows[-1].what == "+ optimizer"
    assert all(row.unit == "samples/s" and row.predicted > 0 for row in rows)
    assert {"gain, quickest rounds", "peak memory", "final loss"} <= set(rows[0].more)
    torch.testing.assert_close(rows[0].predicted, rows[0].median)
