"""Every explorer draws at the ends of its widgets, with finite numbers; and one behaviour of each."""

import html
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from explorer_examples import examples

from dltutorial.config import PRESETS
from dltutorial.convergence import curves
from dltutorial.course import explorers, show
from dltutorial.course.explorers.explorer import Explorer, int_slider
from dltutorial.course.explorers.pipeline import mean_time, simulate
from dltutorial.scaling.collective_cost import Prices

EXAMPLES = examples()


def ends(widget):
    """The first and the last value of a widget."""
    if hasattr(widget, "base"):
        return widget.base**widget.min, widget.base**widget.max
    if hasattr(widget, "min"):
        return widget.min, widget.max
    options = [option[1] if isinstance(option, tuple) else option for option in widget.options]
    return options[0], options[-1]


def text_of(explorer, **values):
    """What an explorer says if its widgets have these values. The other widgets stay as they are."""
    for name, value in values.items():
        explorer.widgets[name].value = value
    return explorer.picture().text


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_explorer_draws_and_everything_is_finite(name):
    explorer = EXAMPLES[name]
    start = {label: widget.value for label, widget in explorer.widgets.items()}
    moves = [{label: value} for label, widget in explorer.widgets.items() for value in ends(widget)]
    for which in (0, 1):
        moves.append({label: ends(widget)[which] for label, widget in explorer.widgets.items()})
    for move in moves:
        text = explorer.draw(MagicMock(), **start | move)
        assert re.search(r"\d", text)
        assert not re.search(r"\b(nan|inf)\b", text), move


@pytest.mark.parametrize("name", EXAMPLES)
def test_without_a_kernel_there_is_a_figure_whose_alternative_text_is_the_text_above_it(name):
    shown = EXAMPLES[name].picture()
    text, alt = re.search(r'<div class="dlt-explorer"><p>(.*?)</p><img [^>]*alt="(.*?)"', shown.html).groups()
    assert html.unescape(alt) == html.unescape(text) == shown.text


def test_a_moved_slider_redraws_in_place(monkeypatch):
    def draw(axes, slope):
        axes.plot([0, 1], [0, slope])
        return f"The slope is {slope:g} < 9."

    displayed, updates = [], []
    handle = SimpleNamespace(update=updates.append)
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(show, "display", lambda item, **options: displayed.append(item) or handle)
    explorer = Explorer(draw, slope=int_slider("Slope", 1, 0, 5))
    explorer._ipython_display_()
    assert displayed[0].text == "The slope is 1 < 9."
    explorer.widgets["slope"].value = 3
    assert [shown.text for shown in updates] == ["The slope is 3 < 9."]


def test_batches_names_the_misfit_of_the_curve():
    points = {batch: [curves.steps(batch, 60, 280)] * 3 + [float("nan")] for batch in (16, 64, 256, 1024)}
    points[4096] = [60, float("nan")]  # half of the runs never reached the target
    explorer = explorers.batches(points, 600, 30, best=(60, 280))
    assert "wrong by a factor of 1.00" in text_of(explorer, s_min=60, b_crit=280)
    assert "wrong by a factor of 2.00" in text_of(explorer, s_min=120)


def test_numbers_names_the_shares_that_a_format_loses():
    explorer = explorers.numbers([2.0**-30] * 3 + [2.0**-20] + [0.0] * 6)
    assert "Gradients times 2^0 in fp16: 90.00% become 0, 10.00% lose digits" in text_of(explorer)
    assert "in bf16: 60.00% become 0" in text_of(explorer, dtype="bf16")


@pytest.mark.parametrize(("load_s", "step_s"), [(0.03, 0.02), (0.02, 0.03)])
@pytest.mark.parametrize("workers", [0, 1, 5])
def test_in_a_pipeline_the_slower_stage_decides(load_s, step_s, workers):
    expected = max(step_s, load_s / workers) if workers else load_s + step_s
    assert mean_time(simulate(load_s, step_s, workers)) == pytest.approx(expected, rel=0.02)


def test_the_roofline_binds_one_sample_by_memory_and_a_batch_by_arithmetic():
    explorer = examples()["roofline"]  # 2e11 FLOP/s and 2e10 bytes/s
    assert "bound by memory" in text_of(explorer, samples=1, width=1024)
    assert "bound by arithmetic" in text_of(explorer, samples=128)


def test_allreduce_names_the_fastest_algorithm_for_each_size():
    explorer = explorers.allreduce(Prices(1e-5, 1e-9, lanes=16), ranks=16)
    text = text_of(explorer, n_bytes=2**20, node=16)
    # Doubling sends 4 rounds of n bytes, the ring 30 rounds of n / 16, the server 2 rounds of 15 n.
    assert "1 MiB on 16 ranks: ring " in text
    assert "server from 16 B on, doubling from 1 KiB on, ring from 128 KiB on" in text


def test_scaling_of_one_gpu_is_perfect_and_of_many_is_not():
    explorer = examples()["scaling"]
    efficiency = {}
    for gpus in (1, 2048):
        found = re.search(r"efficiency is ([\d.]+)%", text_of(explorer, gpus=gpus))
        efficiency[gpus] = float(found[1])
    assert efficiency[1] == 100 > efficiency[2048]


def test_memory_says_when_a_step_does_not_fit_and_that_shards_help():
    explorer = explorers.memory(PRESETS["gpu"], "fp32", device_gib=40)
    large = {"dim": 8192, "depth": 64, "batch": 1, "formats": "16-bit weights", "checkpointing": True}
    assert "does not fit into 40 GiB" in text_of(explorer, **large)
    assert "which fits into 40 GiB" in text_of(explorer, ranks=256, stage=3)
