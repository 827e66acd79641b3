"""The ladder on a CUDA device: every rung can be taken, losses agree, memory is told, the best variant wins."""

import pytest

from dltutorial.config import PRESETS
from dltutorial.data import weather
from dltutorial.train import ladder

pytestmark = pytest.mark.gpu
SIZES = {"patch": 4, "dim": 128, "depth": 2, "heads": 4}


@pytest.fixture(scope="module")
def climbed():
    start = ladder.baseline(PRESETS["smoke"], "cuda", **SIZES)
    assert ladder.missing(start) == {}
    variants = ladder.variants(start, ladder.rungs("cuda"))
    data = ladder.data(weather.ensure(PRESETS["smoke"]), ladder.PLAIN)
    halves_s = {name: ladder.halves_s(recipe, data, 3) for name, recipe in variants.items()}
    return halves_s, ladder.compare(variants, data, rounds=3, turn_s=0.2)


def test_every_rung_can_be_taken_and_ends_at_the_same_loss(climbed):
    _, results = climbed
    first = results["baseline"].final_loss
    assert all(result.final_loss == pytest.approx(first, rel=2e-2) for result in results.values())


def test_the_whole_ladder_is_faster_than_the_baseline(climbed):
    _, results = climbed
    assert max(results["+ graph"].samples_per_s) > 2 * max(results["baseline"].samples_per_s)


def test_memory_is_told_for_each_variant_and_attention_by_its_formula_needs_more(climbed):
    _, results = climbed
    assert all(result.peak_bytes > 0 for result in results.values())
    assert results["baseline"].peak_bytes > results["only attention"].peak_bytes


def test_every_variant_has_a_prediction(climbed):
    halves_s, results = climbed
    assert list(halves_s) == list(results)
    assert all(seconds > 0 for seconds in halves_s.values())


def test_published_attention_starts_fused():
    assert ladder.baseline(PRESETS["gpu"], "cuda").fused_attention
