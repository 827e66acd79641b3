"""What every explorer promises; what is its own stands in ``test_explorers_<name>.py``."""

import html
import itertools
import math
import random
import re
from xml.etree import ElementTree

import pytest

from dltutorial import config
from dltutorial.course import bench_explorers, explorers, show
from dltutorial.course.bench_rows import Options
from dltutorial.course.explorers import svg
from dltutorial.course.explorers.parts import Choice, Drawing, Explorer, Slider, around
from dltutorial.errors import CourseError

EXAMPLES = dict(explorers.examples())


@pytest.fixture
def notebook(monkeypatch):
    """A notebook without a browser: what was shown, and every update of the first thing shown."""
    seen, updates = [], []
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(
        show, "display", lambda item, **options: seen.append(item) or type("Handle", (), {"update": updates.append})
    )
    return seen, updates


def drawn(shown):
    """The parsed page: words, and a picture that has them as its name."""
    page = ElementTree.fromstring(shown.html)
    words, picture = page.find("div"), page.find("svg")
    assert page.get("class") == "dlt-explorer"
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == picture.find("title").text == shown.text
    assert shown.text.endswith(words.text)
    assert re.search(r"\d", words.text), "words without a number"
    assert not re.search(r"\b(nan|inf)\b", shown.html), words.text
    return page


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_corner_of_the_controls_gives_a_picture(name):
    explorer = EXAMPLES[name]
    corners = list(itertools.product(*(dict.fromkeys(each.positions()) for each in explorer.controls.values())))
    few = random.Random(0).sample(corners, min(150, len(corners)))
    for values in [corners[0], corners[-1], *few]:
        page = drawn(explorer.picture(**dict(zip(explorer.controls, values, strict=True))))
        box = [float(edge) for edge in page.find("svg").get("viewBox").split()]
        for element in page.find("svg").iter("text"):
            assert 0 <= float(element.get("x")) <= box[2], (values, element.text)
            assert 0 <= float(element.get("y")) <= box[3], (values, element.text)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_control_moves_picture_and_words(name):
    explorer = EXAMPLES[name]
    for control in explorer.controls.values():
        words, pictures = [], []
        for place in range(3):  # where the others stand: a worker's reserve means nothing without workers
            others = {
                other: each.positions()[place % len(each.positions())] for other, each in explorer.controls.items()
            }
            shown = [explorer.picture(**others | {control.name: value}) for value in control.positions()]
            words.append(len({one.text for one in shown}))
            pictures.append(len({re.sub(r'aria-label="[^"]*"|<title>.*?</title>', "", one.html) for one in shown}))
        assert max(words) > 1 < max(pictures), f"{control.name} changes nothing"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_control_is_labelled_and_explained(name):
    for control in EXAMPLES[name].controls.values():
        widget = EXAMPLES[name].widgets[control.name]
        assert widget.description.startswith(control.label)
        assert len(control.help) > 10
        assert widget.tooltip == control.help
        assert control.help.endswith(".")


@pytest.mark.parametrize("name", EXAMPLES)
def test_colour_is_never_all_that_tells_two_lines_apart(name):
    page = drawn(EXAMPLES[name].picture())
    curves = [line for line in page.iter("polyline") if line.get("points").count(" ") > 2]
    looks = {}
    for curve in curves:
        looks.setdefault((curve.get("stroke-dasharray"), curve.get("stroke-width")), set()).add(curve.get("stroke"))
    assert all(len(colours) == 1 for colours in looks.values()), looks


def line_of(slope, label="a line"):
    return Drawing(f"The slope is {slope:g}.", [svg.line([(0, 0), (10, 10 * slope)], svg.BLUE), svg.text(1, 1, label)])


def test_a_moved_slider_redraws_in_place(notebook):
    seen, updates = notebook
    explorer = Explorer("Line", [Slider("slope", "Slope", value=1, low=0, high=5)], line_of)
    explorer.explore()
    assert seen[0].text == "Line. The slope is 1."
    assert seen[1].children == (explorer.widgets["slope"],)
    explorer.widgets["slope"].value = 3.5
    assert [shown.text for shown in updates] == ["Line. The slope is 3.5."]


def test_without_a_kernel_there_is_the_picture_alone(monkeypatch):
    seen = []
    monkeypatch.setattr(show, "display", lambda item, **options: seen.append(item))
    EXAMPLES["batches"].explore()
    assert [type(item) for item in seen] == [show.Shown]


@pytest.mark.parametrize(
    ("error", "why"),
    [(CourseError("no <memory>, add nodes"), "no &lt;memory&gt;, add nodes"), (ZeroDivisionError("x\ny"), "x y")],
)
def test_a_drawing_that_fails_says_so_in_its_place_and_comes_back(notebook, error, why):
    def fails_at_5(slope):
        if slope == 5:
            raise error
        return line_of(slope)

    _, updates = notebook
    explorer = Explorer("Line", [Slider("slope", "Slope", value=1, low=0, high=5)], fails_at_5)
    explorer.explore()
    explorer.widgets["slope"].value = 5
    assert why in updates[-1].html
    assert "\n" not in updates[-1].text
    assert "<svg" not in updates[-1].html
    explorer.widgets["slope"].value = 2
    assert updates[-1].text == "Line. The slope is 2."


def test_text_is_escaped():
    hostile = '<script>bad"&'
    shown = Explorer(
        hostile, [Slider("slope", "Slope", value=1, low=0, high=5)], lambda slope: line_of(slope, hostile)
    ).picture()
    page = drawn(shown)
    assert "<script>bad" not in shown.html
    assert page.find(".//text").text == hostile
    assert html.escape(hostile) in shown.html


def test_a_slider_gives_numbers_within_its_ends():
    log = Slider("batch", "Batch", value=32, low=1, high=4096, log=True, integer=True)
    assert log.checked(10 ** math.log10(4096)) == 4096
    assert log.positions() == (1, 64, 4096, 32)
    assert log.checked(31.6) == 32
    widget = log.widget()
    assert (2**widget.min, 2**widget.max) == pytest.approx((1, 4096))
    assert Slider("n", "N", value=3, low=0, high=9, integer=True).widget().step == 1
    assert Slider("x", "X", value=3, low=0, high=9, unit="s").widget().description == "X [s]"
    assert Slider("x", "X", **around(8.0, 4)).positions() == (2, 8, 32, 8)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize(("low", "value", "high"), [(10, 402, 1e5), (1, 1, 27360), (0.3, 6.7, 7), (1, 1.001, 100)])
def test_a_browser_finds_the_start_among_the_steps(low, value, high, integer):
    if integer and (value, high) != (402, 1e5):
        low, value, high = math.ceil(low), math.ceil(value), math.ceil(high)
    for log in (True, False):
        slider = Slider("x", "X", value=value, low=low, high=high, log=log, integer=integer)
        widget = slider.widget()
        start = math.log2(value) if log else value
        steps = round((start - widget.min) / widget.step)
        on_a_step = round(widget.min + steps * widget.step, 7)  # as the browser rounds
        assert slider.checked(2**on_a_step if log else on_a_step) == pytest.approx(value, rel=2e-3)
        assert 5 < (widget.max - widget.min) / widget.step < 1000 or (integer and not log)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"value": 10}, "x is 10; choose a number from 0 to 9"),
        ({"value": math.nan}, "value of slider 'x' is nan"),
        ({"value": "three"}, "not one number"),
        ({"low": 9}, "goes from 9 to 9"),
        ({"high": math.inf}, "high of slider 'x' is inf"),
        ({"log": True}, "positive and ordered ends"),
        ({"step": -1}, "a step of -1"),
    ],
)
def test_a_slider_that_cannot_be_gets_one_line(change, why):
    with pytest.raises(CourseError, match=why):
        Slider(**({"name": "x", "label": "X", "value": 3, "low": 0, "high": 9} | change))


def test_choices_and_explorers_that_cannot_be_get_one_line():
    with pytest.raises(CourseError, match="no options"):
        Choice("x", "X", (), value="a")
    with pytest.raises(CourseError, match="'c'; choose one of: a, b"):
        Choice("x", "X", ("a", "b"), value="c")
    one = Choice("x", "X", ("a", "b"), value="a")
    for controls in ([], [one, one]):
        with pytest.raises(CourseError, match="each with its own name"):
            Explorer("title", controls, line_of)
    explorer = Explorer("title", [one], lambda x: Drawing(f"{x} 1."))
    with pytest.raises(CourseError, match="no control 'y'; choose from: x"):
        explorer.picture(y=3)
    with pytest.raises(CourseError, match="choose one of: a, b"):
        explorer.picture(x="z")


@pytest.mark.parametrize(
    ("limits", "log", "ticks"),
    [
        ((0, 10), False, ["0", "2", "4", "6", "8", "10"]),
        ((-0.3, 0.3), False, ["-0.3", "-0.2", "-0.1", "0", "0.1", "0.2", "0.3"]),
        ((1e-7, 1e7), True, ["10⁻⁷", "10⁻⁴", "0.1", "100", "10⁵"]),
        ((2, 30), True, ["2", "5", "10", "20"]),
    ],
)
def test_ticks_are_round(limits, log, ticks):
    frame = svg.Axes(limits, (0, 1), log_x=log).frame()
    found = [ElementTree.fromstring(part) for part in frame if part.startswith("<text")]
    assert [each.text for each in found if each.get("text-anchor") == "middle" and each.text] == ticks


def test_axes_place_values_and_cut_what_leaves_them():
    axes = svg.Axes((1, 100), (0, 10), log_x=True)
    assert (axes.x(1), axes.x(100), axes.y(0), axes.y(10)) == (axes.left, axes.right, axes.bottom, axes.top)
    assert axes.x(10) == pytest.approx((axes.left + axes.right) / 2)
    assert (axes.x(1e9), axes.y(-5)) == (axes.right, axes.bottom)
    assert axes.holds(10, 5)
    assert not axes.holds(10, 11)
    cut = ElementTree.fromstring(axes.curve([(1, 0), (1e300, 1e300)], svg.RED))
    assert cut.get("viewBox").split()[:2] == [cut.get("x"), cut.get("y")]
    assert all(abs(float(number)) < 3000 for number in re.findall(r"[\d.]+", cut.find("polyline").get("points")))
    with pytest.raises(CourseError, match="the x axis cannot go from 0 to 1"):
        svg.Axes((0, 1), (0, 1), log_x=True)


def test_stripes_stay_few_and_a_bar_without_length_is_none():
    assert svg.bar(0, 0, 4000, 20, svg.BLUE, "striped").count("l-20") < 80
    assert 'width="0.0"' in svg.bar(0, 0, -3, 20, svg.BLUE)


def test_the_bench_has_a_row_and_the_budget_for_each():
    rows = list(bench_explorers.explorers(Options(config.preset("smoke"), repeats=1)))
    assert [row.what.partition(":")[0] for row in rows] == list(EXAMPLES)
    assert {row.budget for row in rows} == {0.1}
    assert all(0 < row.median < 60 for row in rows)  # how fast they are is the benchmark's to say
