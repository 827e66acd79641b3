"""The ladder on a CUDA device: every rung can be taken, losses agree, memory is told, the best variant wins."""

import pytest

from dltutorial.config import PRESETS
from dltutorial.data import weather
from dltutorial.train import ladder, step_breakdown

pytestmark = pytest.mark.gpu
SIZES = {"patch": 4, "dim": 128, "depth": 2, "heads": 4}


@pytest.fixture(scope="module")
def climbed():
    start = ladder.baseline(PRESETS["smoke"], "cuda", ladder.PLAIN, **SIZES)
    steps, beside = ladder.rungs(start, "cuda"), ladder.side_rungs("cuda")
    variants = {name: start.taking(*rungs) for name, rungs in ladder.routes(steps, beside).items()}
    data = ladder.data(weather.ensure(PRESETS["smoke"]), variants)
    account = step_breakdown.measure(start, [*steps, *beside], data)
    return steps, beside, account, ladder.compare(variants, data, rounds=3, turn_s=0.2)


def test_every_rung_can_be_taken_and_ends_at_the_same_loss(climbed):
    steps, _, _, results = climbed
    assert [rung.name for rung in steps if rung.missing] == []
    assert ladder.loss_difference(results) < 2e-2


@pytest.mark.timed
def test_the_whole_ladder_is_faster_than_the_baseline(climbed):
    results = climbed[-1]
    assert ladder.gains(results)["+ graph"] > 2


def test_memory_is_told_for_each_variant_and_attention_by_its_formula_needs_more(climbed):
    results = climbed[-1]
    assert all(result.peak_bytes > 0 for result in results.values())
    assert results["baseline"].peak_bytes > results["only attention"].peak_bytes


def test_every_rung_has_a_prediction(climbed):
    steps, beside, account, _ = climbed
    assert account.step.on_device and account.step.seconds["launch"] > 0
    assert all(account.predicted((rung,)) > 0 for rung in (*steps, *beside))


def test_published_attention_starts_fused():
    assert ladder.baseline(PRESETS["gpu"], "cuda").recipe.fused_attention
