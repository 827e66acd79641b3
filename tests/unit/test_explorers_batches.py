import math
import re

import pytest

from dltutorial.convergence import curves
from dltutorial.course.explorers.scale import batches as make
from dltutorial.course.explorers.scale import misfit
from dltutorial.errors import CourseError

EXACT = {batch: [curves.steps(batch, 60, 280)] * 3 for batch in (16, 64, 256, 1024)}
BEST = (60, 280)


def test_the_misfit_is_a_factor():
    assert misfit(EXACT, 60, 280) == pytest.approx(1)
    assert misfit(EXACT, 120, 280) == pytest.approx(2)
    assert misfit(EXACT, 30, 280) == pytest.approx(2)
    scattered = {64: [100, 400], 256: [200]}
    assert misfit(scattered, 100, 64) == pytest.approx(math.exp(math.sqrt(math.log(200 / 125) ** 2 / 2)))


def test_inf_means_as_nan_does_that_the_target_was_never_reached():
    never, written = ({**EXACT, 4096: [value] * 3} for value in (math.nan, math.inf))
    assert misfit(written, 120, 280) == misfit(never, 120, 280) == pytest.approx(2)


def test_no_curve_beats_the_fit_whose_misfit_the_chapter_tells():
    points = {8: [1100, 1400, 1600], 32: [380, 400, 590], 128: [120, 260, 140], 512: [100, 110, math.nan]}
    fit = curves.fit(list(points), list(points.values()), resampled=2)
    best = misfit(points, fit.s_min, fit.b_crit)
    assert math.log(best) == pytest.approx(fit.spread, rel=1e-3)
    for off in (0.97, 1.03):
        assert min(misfit(points, fit.s_min * off, fit.b_crit), misfit(points, fit.s_min, fit.b_crit * off)) > best


def test_a_picture_says_in_words_what_it_shows():
    shown = make(EXACT, 120, 280, BEST).picture()
    assert re.search(r"S_min 120 steps, B_crit 280 images: typically off by a factor of 2\.00", shown.text)
    assert "the fit: a factor of 1.00" in shown.text


def test_moved_numbers_move_curve_and_words():
    explorer = make(EXACT, 600, 30, BEST)
    first, moved = explorer.picture(), explorer.picture(s_min=60, b_crit=280)
    assert "off by a factor of 1.00" in moved.text
    assert first.html != moved.html


def test_the_sliders_hold_the_measured_range():
    explorer = make(EXACT, 1e-9, 1e9, BEST)  # which begin at an end
    for slider in explorer.controls.values():
        assert slider.options[0][1] <= 60 < 280 <= slider.options[-1][1]


def test_a_target_never_reached_is_said_and_not_drawn():
    shown = make(EXACT | {4096: [math.nan, math.nan, 70.0], 8192: [math.nan]}, 60, 280, BEST).picture()
    assert "3 runs never reached the target" in shown.text
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
        make(points, *numbers, BEST)
