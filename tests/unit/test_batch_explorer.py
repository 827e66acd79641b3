import math
import re
from xml.etree import ElementTree

import pytest

from dltutorial.convergence import curves
from dltutorial.errors import CourseError
from dltutorial.teach import show
from dltutorial.teach.batch_explorer import Explorer, misfit

EXACT = {batch: [curves.steps(batch, 60, 280)] * 3 for batch in (16, 64, 256, 1024)}


def test_the_misfit_is_a_factor():
    assert misfit(EXACT, 60, 280) == pytest.approx(1)
    assert misfit(EXACT, 120, 280) == pytest.approx(2)
    assert misfit(EXACT, 30, 280) == pytest.approx(2)
    scattered = {64: [100, 400], 256: [200]}
    assert misfit(scattered, 100, 64) == pytest.approx(math.exp(math.sqrt(math.log(200 / 125) ** 2 / 2)))


def test_a_picture_says_in_words_what_it_shows():
    shown = Explorer(EXACT, 120, 280, best=(60, 280)).picture()
    assert re.search(r"S_min 1[12]\d steps, B_crit 2[78]\d: typically off by a factor of (1.9|2.0)", shown.text)
    assert "the fit: a factor of 1.00" in shown.text
    assert shown.text.removeprefix("Steps to the target against the batch size. ") in shown.html
    tree = ElementTree.fromstring(shown.html)
    assert tree.find("svg").get("aria-label") == shown.text
    assert len(tree.findall(".//circle")) == 12 + 1  # and one in the legend


def test_a_moved_slider_changes_curve_and_words(monkeypatch):
    seen, updates = [], []
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(
        show, "display", lambda item, **options: seen.append(item) or type("Handle", (), {"update": updates.append})
    )
    explorer = Explorer(EXACT, 600, 30)
    explorer.explore()
    first = seen[0]
    explorer.s_min.value = 60.0
    explorer.b_crit.value = 280.0
    assert len(updates) == 2
    assert updates[-1].html != first.html
    assert "off by a factor of 1.00" in updates[-1].text
    polylines = [re.search(r'polyline points="([^"]+)"', shown.html)[1] for shown in (first, updates[-1])]
    assert polylines[0] != polylines[1]


def test_sliders_are_labelled_and_hold_the_measured_range():
    explorer = Explorer(EXACT, 1e-9, 1e9)
    for slider, name in ((explorer.s_min, "S_min"), (explorer.b_crit, "B_crit")):
        assert slider.description == name
        assert slider.tooltip
        assert 10**slider.min <= 60 <= 10**slider.max
        assert 10**slider.min <= 280 <= 10**slider.max
    assert "S_min" in explorer.picture().text


def test_a_target_never_reached_is_said_and_not_drawn():
    shown = Explorer(EXACT | {4096: [math.nan, math.nan, 70.0], 8192: [math.nan]}, 60, 280).picture()
    assert "3 runs never reached the target" in shown.text
    assert shown.html.count("<circle") == 13 + 1
    assert "nan" not in shown.html


@pytest.mark.parametrize(
    ("points", "numbers", "why"),
    [
        ({16: [math.nan], 32: [5.0]}, (60, 280), "fewer than two batch sizes reached the target"),
        ({}, (60, 280), "fewer than two"),
        (EXACT, (-1, 280), "S_min is -1"),
        (EXACT, (60, math.nan), "B_crit is nan"),
    ],
)
def test_what_cannot_be_drawn_gets_one_line(points, numbers, why):
    with pytest.raises(CourseError, match=why):
        Explorer(points, *numbers)
