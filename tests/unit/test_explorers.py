"""Every explorer draws at the ends of its controls, with finite numbers; and one behaviour of each."""

import html
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from explorer_examples import examples

from dltutorial.comm.cost import Prices
from dltutorial.config import PRESETS
from dltutorial.convergence import curves
from dltutorial.course import explorers, show
from dltutorial.course.explorers.explorer import Explorer, geometric, slider, whole
from dltutorial.course.explorers.pipeline import long_run
from dltutorial.errors import CourseError
from dltutorial.parallel.bucket_model import Link, Step

EXAMPLES = examples()


def ends(control):
    """The first and the last value of a control."""
    options = [option[1] if isinstance(option, tuple) else option for option in control.options]
    return options[0], options[-1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_explorer_draws_and_everything_is_finite(name):
    explorer = EXAMPLES[name]
    start = {control: widget.value for control, widget in explorer.controls.items()}
    moves = [{control: value} for control, widget in explorer.controls.items() for value in ends(widget)]
    for which in (0, 1):
        moves.append({control: ends(widget)[which] for control, widget in explorer.controls.items()})
    for move in moves:
        words = explorer.draw(MagicMock(), SimpleNamespace(**start | move))
        assert re.search(r"\d", words)
        assert not re.search(r"\b(nan|inf)\b", words), move


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_words_above_the_picture_are_its_alternative_text(name):
    shown = EXAMPLES[name].picture()
    words, alt = re.search(r'<div class="dlt-explorer"><div>(.*?)</div><img [^>]*alt="(.*?)"', shown.html).groups()
    assert html.unescape(alt) == shown.text == f"{EXAMPLES[name].title}. {html.unescape(words)}"


def test_a_moved_slider_redraws_in_place(monkeypatch):
    def draw(axes, values):
        axes.plot([0, 1], [0, values.slope])
        return f"The slope is {values.slope:g} < 9."

    displayed, updates = [], []
    handle = SimpleNamespace(update=updates.append)
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(show, "display", lambda item, **options: displayed.append(item) or handle)
    explorer = Explorer("Line", draw, slope=slider("Slope", "How steep.", 1, whole(0, 5)))
    explorer._ipython_display_()
    assert displayed[0].text == "Line. The slope is 1 < 9."
    explorer.controls["slope"].value = 3
    assert [shown.text for shown in updates] == ["Line. The slope is 3 < 9."]


def test_a_slider_has_its_ends_and_its_start_among_its_stops():
    made = slider("X", "A number.", 402.0, geometric(10, 1e5), "s")
    values = [value for _, value in made.options]
    assert (values[0], values[-1], made.value, made.description) == (10, 1e5, 402.0, "X [s]")
    assert values == sorted(values)
    with pytest.raises(CourseError, match=r"X is .*; give a positive"):
        slider("X", "A number.", float("nan"), [1, 2])


def test_batches_names_the_misfit_of_the_curve():
    points = {batch: [curves.steps(batch, 60, 280)] * 3 for batch in (16, 64, 256, 1024)}
    explorer = explorers.batches(points, 600, 30, best=(60, 280))
    assert "off by a factor of 1.00" in explorer.picture(s_min=60, b_crit=280).text
    assert "off by a factor of 2.00" in explorer.picture(s_min=120, b_crit=280).text


def test_numbers_names_the_shares_that_a_format_loses():
    explorer = explorers.numbers([2.0**-30] * 3 + [2.0**-20] + [0.0] * 6)
    assert "Scaled by 2^0, in fp16: 90% of the gradients are 0, 10% keep only some" in explorer.picture().text
    assert "in bf16: 60% of the gradients are 0" in explorer.picture(dtype="bf16").text


@pytest.mark.parametrize(("load_s", "step_s"), [(0.03, 0.02), (0.02, 0.03)])
@pytest.mark.parametrize("workers", [0, 1, 5])
def test_in_a_pipeline_the_slower_stage_decides(load_s, step_s, workers):
    expected = max(step_s, load_s / workers) if workers else load_s + step_s
    assert long_run(load_s, step_s, workers, 2, 1) == pytest.approx(expected, rel=0.02)


def test_the_roofline_binds_one_sample_by_memory_and_a_batch_by_arithmetic():
    explorer = EXAMPLES["roofline"]  # 2e11 FLOP/s and 2e10 bytes/s
    assert "Bound by memory" in explorer.picture(samples=1, width=1000).text
    assert "Bound by arithmetic" in explorer.picture(samples=100, width=1000).text


def test_allreduce_names_the_fastest_algorithm_for_each_size():
    explorer = explorers.allreduce(Prices(1e-5, 1e-9, 0.0, lanes=16), ranks=16)
    text = explorer.picture(n_bytes=2**20, node=16, adding=1000).text
    # Doubling sends 4 rounds of n bytes, the ring 30 rounds of n / 16, the server 2 rounds of 15 n.
    assert "1 MiB on 16 ranks, quickest first: ring " in text
    assert re.search(r"is server; from \d+ B on doubling; from \d+ KiB on ring", text)


def test_overlap_hides_all_but_the_last_bucket():
    explorer = explorers.overlap(Step([2**20] * 10, 0.010, 0.005), Link(1e-3, 2**20 / 1e-3), bucket_mib=2)
    # A bucket takes 3 ms and one is ready every 2 ms. Buckets are sent from 2 ms on without a pause, until 17 ms.
    text = explorer.picture().text
    assert "Buckets of 2 MiB: 5 messages, a step of 22 ms." in text
    assert "Of 15 ms of communication 53% hides behind the backward pass" in text


def test_scaling_of_one_gpu_is_perfect_and_of_many_is_not():
    efficiency = {}
    for gpus in (1, 1500):
        found = re.search(r"efficiency ([\d.]+)%", EXAMPLES["scaling"].picture(gpus=gpus).text)
        efficiency[gpus] = float(found[1])
    assert efficiency[1] == 100 > efficiency[1500]


def test_memory_says_when_a_step_does_not_fit_and_that_shards_help():
    explorer = explorers.memory(PRESETS["gpu"], device_gib=40)
    large = {"dim": 8192, "depth": 48, "batch": 1, "formats": "16-bit weights", "checkpointing": True}
    assert "too much for 40 GiB" in explorer.picture(**large).text
    assert "fits into 40 GiB" in explorer.picture(**large, ranks=256, stage=3).text
