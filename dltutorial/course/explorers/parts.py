"""An explorer: a picture of a model that follows sliders, and says in words what it shows.

In: controls, and a function that draws for their values. Out: an SVG picture that follows every move, in milliseconds,
with the words above it. Picture and words are an output of their own, so they stay, as they were last, in a page
without a kernel. The sliders are ipywidgets': the Tab key reaches them, the arrow keys move them.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dltutorial.course import show
from dltutorial.course.explorers import svg as marks
from dltutorial.course.guess import number
from dltutorial.errors import CourseError

_WIDEST = 1.125  # of a picture on a screen, over its own width: letters then are a little larger than the page's
_LAYOUT = {"width": "40em", "max_width": "100%", "height": "auto", "flex_flow": "row wrap"}
# Beside the slider where all of it has room, above it on a phone.
_LABEL = {"description_width": "max(16em, min(100% - 4em, (40em - 100%) * 999))"}
_STEPS = 200  # of a slider whose step nobody gave
_OCTAVE_STEPS = 2  # of a logarithmic slider of whole numbers: 1, 2, 3, 4, 6, 8, 11, 16
# ipywidgets gives a slider's handle no name, and a logarithmic one its exponent as a value. A screen reader is told
# what the others see: the label and the readout. And JupyterLab takes the arrow keys from a list to choose from, to go
# to another cell, unless the list forbids it. It runs in JupyterLab, where the sliders are; elsewhere it ends.
_NAMES = """<script>(() => {
  const area = document.currentScript?.closest(".jp-OutputArea");
  if (!area || area.dltNames) return;
  area.dltNames = new MutationObserver(() => {
    for (const slider of area.querySelectorAll(".widget-slider")) {
      const handle = slider.querySelector("[role=slider]");
      for (const [name, part] of [["aria-label", ".widget-label"], ["aria-valuetext", ".widget-readout"]]) {
        handle?.setAttribute(name, slider.querySelector(part)?.textContent ?? "");
      }
    }
    for (const list of area.querySelectorAll("select")) list.dataset.lmSuppressShortcuts = "true";
  });
  area.dltNames.observe(area, {childList: true, subtree: true, characterData: true});
})();</script>"""


@dataclass(frozen=True)
class Slider:
    """A number to move.

    Attributes:
        name: of the argument of the function that draws.
        label: what the learner reads.
        value: where it starts.
        low, high: its ends.
        log: whether equal steps multiply rather than add.
        step: smallest move of a linear slider; default: a two-hundredth of its length, 1 of an integer one.
        integer: whether only whole numbers are drawn.
        unit: behind the label.
        help: one sentence, shown when the pointer rests on it.
    """

    name: str
    label: str
    value: float
    low: float
    high: float
    log: bool = False
    step: float | None = None
    integer: bool = False
    unit: str = ""
    help: str = ""

    def __post_init__(self) -> None:
        for what in ("value", "low", "high"):
            if not math.isfinite(number(getattr(self, what), f"{what} of slider {self.name!r}")):
                raise CourseError(f"{what} of slider {self.name!r} is {getattr(self, what)}; give a finite number")
        if not self.low < self.high or (self.log and self.low <= 0):
            positive = "positive and " if self.log else ""
            raise CourseError(
                f"slider {self.name!r} goes from {self.low:g} to {self.high:g}; give {positive}ordered ends"
            )
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise CourseError(f"slider {self.name!r} has a step of {self.step:g}; give one between 0 and its length")
        self.checked(self.value)

    def checked(self, value: Any) -> float:
        """The value as the function that draws gets it.

        Raises:
            CourseError: it is no number between the ends.
        """
        found = number(value, f"{self.label} ({self.name})")
        slack = 1e-6 * max(abs(self.low), abs(self.high))  # a power, rounded on its way, may lie a hair outside
        if not self.low - slack <= found <= self.high + slack:
            raise CourseError(f"{self.name} is {found:g}; choose a number from {self.low:g} to {self.high:g}")
        found = min(max(found, self.low), self.high)
        return round(found) if self.integer else found

    def positions(self) -> tuple[float, ...]:
        """Both ends, the middle, and where it starts."""
        middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return tuple(self.checked(value) for value in (self.low, middle, self.high, self.value))

    def widget(self) -> Any:
        """The slider itself."""
        import ipywidgets

        shared = {
            "description": f"{self.label} [{self.unit}]" if self.unit else self.label,
            "tooltip": self.help or self.label,
            "readout_format": ",d" if self.integer and not self.log else ",.0f" if self.integer else ",.3r",
            "style": dict(_LABEL),
            "layout": dict(_LAYOUT),
        }
        if self.log:
            low, value, high = map(math.log2, (self.low, self.value, self.high))
            ends = {"value": self.value, "base": 2, "min": low, "max": high}
            step = _even_step(low, value, high, 1 / _OCTAVE_STEPS if self.integer else (high - low) / _STEPS)
            return ipywidgets.FloatLogSlider(**ends, step=step, **shared)
        if self.integer:
            ends = {"value": round(self.value), "min": math.ceil(self.low), "max": math.floor(self.high)}
            return ipywidgets.IntSlider(**ends, step=round(self.step or 1), **shared)
        step = self.step or _even_step(self.low, self.value, self.high, (self.high - self.low) / _STEPS)
        return ipywidgets.FloatSlider(value=self.value, min=self.low, max=self.high, step=step, **shared)


@dataclass(frozen=True)
class Choice:
    """One of a few names.

    Attributes:
        name: of the argument of the function that draws.
        label: what the learner reads.
        options: the names.
        value: the one it starts with.
        help: one sentence, shown when the pointer rests on it.
    """

    name: str
    label: str
    options: Sequence[str]
    value: str
    help: str = ""

    def __post_init__(self) -> None:
        if not self.options:
            raise CourseError(f"choice {self.name!r} has no options; give at least one")
        self.checked(self.value)

    def checked(self, value: Any) -> str:
        """The option of that name.

        Raises:
            CourseError: there is none.
        """
        if value not in self.options:
            raise CourseError(f"{self.name} is {value!r}; choose one of: {', '.join(self.options)}")
        return value

    def positions(self) -> tuple[str, ...]:
        """Every option."""
        return tuple(self.options)

    def widget(self) -> Any:
        """The list to choose from."""
        import ipywidgets

        return ipywidgets.Dropdown(
            options=list(self.options), value=self.value, description=self.label, tooltip=self.help or self.label,
            style=dict(_LABEL), layout=dict(_LAYOUT),
        )  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """What a function draws.

    Attributes:
        words: one or two sentences, with numbers, that say what the picture shows; the last has its full stop.
        svg: elements, as of ``svg``.
        width, height: of the picture, in pixels.
    """

    words: str
    svg: Sequence[str] = field(default_factory=list)
    width: int = marks.WIDTH
    height: int = marks.HEIGHT


class Explorer:
    """A title, controls, and a picture that follows them.

    Attributes:
        widgets: name → ipywidget.
    """

    def __init__(self, title: str, controls: Sequence[Slider | Choice], draw: Callable[..., Drawing]) -> None:
        """Make the controls; :meth:`explore` shows them.

        Args:
            title: what is explored, read before the words.
            controls: at least one, each with a name of its own.
            draw: called with every control's value by name.

        Raises:
            CourseError: no controls, or two of one name.
        """
        names = [control.name for control in controls]
        if not names or len(set(names)) < len(names):
            raise CourseError(f"explorer {title!r} has controls {names}; give at least one, each with its own name")
        self.title, self.controls, self.draw = title, {control.name: control for control in controls}, draw
        self.widgets = {name: control.widget() for name, control in self.controls.items()}

    def values(self, **changed: Any) -> dict[str, Any]:
        """What the controls are set to, some of it changed.

        Raises:
            CourseError: there is no such control, or its value does not fit.
        """
        unknown = set(changed) - set(self.controls)
        if unknown:
            raise CourseError(f"no control {min(unknown)!r}; choose from: {', '.join(self.controls)}")
        given = {name: widget.value for name, widget in self.widgets.items()} | changed
        return {name: self.controls[name].checked(value) for name, value in given.items()}

    def picture(self, **changed: Any) -> show.Shown:
        """The picture as the controls stand, some of them changed, and its words.

        Raises:
            CourseError: a control or value that does not fit, or values for which nothing can be drawn.
        """
        drawing = self.draw(**self.values(**changed))
        return show.Shown(_page(drawing, self.title), f"{self.title}. {drawing.words}")

    def explore(self) -> None:
        """Show the picture, and the controls under it, which the keyboard moves too."""
        handle = show.display(self.picture(), display_id=True)
        if show.in_notebook():
            import ipywidgets

            for widget in self.widgets.values():
                widget.observe(lambda _: handle.update(self._moved()), names="value")
            show.display(ipywidgets.VBox(list(self.widgets.values()), layout={"max_width": "100%"}))

    def _moved(self) -> show.Shown:
        """The picture, or in its place why there is none: an error in a callback would end in a log nobody reads."""
        try:
            return self.picture()
        except Exception as error:
            kind = "" if isinstance(error, CourseError) else f"{type(error).__name__}: "
            why = f"Nothing to draw here. {kind}{' '.join(str(error).split())}; move a slider back."
            return show.Shown(f'<div class="dlt-explorer"><div role="alert">{html.escape(why)}</div></div>', why)


def around(value: float, factor: float) -> Mapping[str, float]:
    """Start and ends of a logarithmic slider with a measured number in its middle, as arguments of ``Slider``."""
    return {"value": value, "low": value / factor, "high": value * factor, "log": True}


def _even_step(low: float, value: float, high: float, wanted: float) -> float:
    """About the wanted step, such that steps from the lower end meet the start: a browser moves it to one otherwise."""
    length = value - low if value - low > wanted / 2 else high - low
    return length / max(1, round(length / wanted))


def _page(drawing: Drawing, title: str) -> str:
    """Words, and the picture with the words as its name for screen readers."""
    name = html.escape(f"{title}. {drawing.words}")
    size = f'viewBox="0 0 {drawing.width} {drawing.height}" width="{drawing.width}" height="{drawing.height}"'
    widest = f"width:100%;max-width:{_WIDEST * drawing.width:.0f}px;height:auto"
    return (
        f'<div class="dlt-explorer"><div>{html.escape(drawing.words)}</div><svg role="img" aria-label="{name}" {size} '
        f'style="{widest};font-size:{marks.FONT}px" fill="currentColor"><title>{name}</title>{"".join(drawing.svg)}'
        f"</svg>{_NAMES}</div>"
    )
