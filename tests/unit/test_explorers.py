"""What every explorer promises; what is its own stands in ``test_explorers_<name>.py``."""

import html
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from explorer_examples import examples

from dltutorial.course import show
from dltutorial.course.explorers.explorer import Explorer, around, choice, geometric, slider, whole
from dltutorial.errors import CourseError

EXAMPLES = examples()


@pytest.fixture
def notebook(monkeypatch):
    """A notebook without a browser: what was shown, and every update of the first thing shown."""
    seen, updates = [], []
    monkeypatch.setattr(show, "in_notebook", lambda: True)
    monkeypatch.setattr(
        show, "display", lambda item, **options: seen.append(item) or type("Handle", (), {"update": updates.append})
    )
    return seen, updates


def positions(control):
    """Both ends, the middle, and where it starts."""
    options = [option[1] if isinstance(option, tuple) else option for option in control.options]
    return list(dict.fromkeys([options[0], options[len(options) // 2], options[-1], control.value]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_words_with_numbers_stand_above_the_picture_and_are_its_alt_text(name):
    shown = EXAMPLES[name].picture()
    words, alt = re.search(r'<div class="dlt-explorer"><div>(.*?)</div><img [^>]*alt="(.*?)"', shown.html).groups()
    assert html.unescape(alt) == shown.text == f"{EXAMPLES[name].title}. {html.unescape(words)}"
    assert re.search(r"\d", words)
    assert words.endswith(".")
    assert not re.search(r"\b(nan|inf)\b", words)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_control_moves_picture_and_words(name):
    explorer = EXAMPLES[name]
    for moved, control in explorer.controls.items():
        words, pictures = [], []
        for place in range(3):  # where the others stand: a worker's reserve means nothing without workers
            others = {other: positions(each) for other, each in explorer.controls.items() if other != moved}
            others = {other: each[place % len(each)] for other, each in others.items()}
            axes = [MagicMock() for _ in positions(control)]
            values = [SimpleNamespace(**others, **{moved: value}) for value in positions(control)]
            words.append(len({explorer.draw(ax, each) for ax, each in zip(axes, values, strict=True)}))
            pictures.append(len({re.sub(r"id='\d+'", "", repr(ax.mock_calls)) for ax in axes}))
        assert max(words) > 1 < max(pictures), f"{moved} changes nothing"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_control_is_labelled_and_explained(name):
    for control in EXAMPLES[name].controls.values():
        assert len(control.description) > 2
        assert len(control.tooltip) > 10
        assert control.tooltip.endswith(".")


@pytest.mark.parametrize("name", EXAMPLES)
def test_colour_is_never_all_that_tells_two_lines_apart(name, monkeypatch):
    seen = []
    monkeypatch.setattr("dltutorial.record.plots.image", lambda figure, alt: seen.append(figure) or "")
    EXAMPLES[name].picture()
    looks = {}
    for line in seen[0].axes[0].get_lines():
        # matplotlib keeps a dash pattern of its own only for this, which get_linestyle does not tell apart from "--"
        looks.setdefault((str(line._dash_pattern), line.get_marker()), set()).add(line.get_color())
    assert all(len(colours) == 1 for colours in looks.values()), looks


def line_of(axes, values):
    axes.plot([0, 1], [0, values.slope])
    return f"The slope is {values.slope:g} < 9."


def test_a_moved_slider_redraws_in_place(notebook):
    seen, updates = notebook
    explorer = Explorer("Line", line_of, slope=slider("Slope", "How steep.", 1, whole(0, 5)))
    explorer._ipython_display_()
    assert seen[0].text == "Line. The slope is 1 < 9."
    assert "The slope is 1 &lt; 9." in seen[0].html
    assert seen[1].children == (explorer.controls["slope"],)
    explorer.controls["slope"].value = 3
    assert [shown.text for shown in updates] == ["Line. The slope is 3 < 9."]


def test_without_a_kernel_there_is_the_picture_alone(monkeypatch):
    seen = []
    monkeypatch.setattr(show, "display", lambda item, **options: seen.append(item))
    EXAMPLES["batches"]._ipython_display_()
    assert [type(item) for item in seen] == [show.Shown]


def test_a_slider_has_its_ends_and_its_start_among_its_stops():
    made = slider("X", "A number.", 402.0, geometric(10, 1e5), "s")
    values = [value for _, value in made.options]
    assert (values[0], values[-1], made.value, made.description) == (10, 1e5, 402.0, "X [s]")
    assert 402.0 in values
    assert values == sorted(values)
    assert slider("X", "A number.", 1e9, geometric(10, 1e5)).value == 1e5
    assert whole(1, 4096)[:6] == [1, 2, 3, 4, 6, 8]
    assert whole(0, 3) == [0, 1, 2, 3]
    assert slider("N", "A count.", 27_360, whole(1, 27_360)).label == "27,360"
    assert [around(8.0, 4)[n] for n in (0, -1)] == [2, 32]
    assert choice("X", "A name.", {"a": 1, "b": 2}, "b").value == "b"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_a_start_that_cannot_be_gets_one_line(value):
    with pytest.raises(CourseError, match=r"X is .*; give a positive"):
        slider("X", "A number.", value, [1, 2])


def test_there_are_no_stops_around_0():
    with pytest.raises(CourseError, match=r"from 0 to 0 there are no equal ratios; give positive"):
        around(0, 20)
