"""A learner's prediction: a number field before the measurement, a scored picture after it.

In: a question, a unit, a default, perhaps a model's value in the same unit. Out: the guess, and one record of kind
"prediction" with guess, model, measurement and their ratios.
"""

import math
from typing import Any

from dltutorial.course import show
from dltutorial.profile.timing import three
from dltutorial.record import records


class Guess:
    """A learner's prediction, live in the notebook: the number in the field is the guess."""

    def __init__(
        self, writer: records.Writer, name: str, question: str, unit: str, default: float, model: float | None
    ) -> None:
        """Make the field; :meth:`ask` shows it."""
        import ipywidgets

        self.name, self.question, self.unit, self.model = name, question, unit, model
        self._writer, self._default = writer, float(default)
        label = f"Your guess [{unit}]" if unit else "Your guess"
        self._field = ipywidgets.FloatText(self._default, description=label, style={"description_width": "initial"})

    @property
    def value(self) -> float:
        """The number in the field, in ``unit``."""
        return float(self._field.value)

    @property
    def touched(self) -> bool:
        """Whether the learner changed the default."""
        return self.value != self._default

    def ask(self, before: "Guess | None" = None) -> None:
        """Show the question, the guess as text (for pages without a kernel), and the field.

        What a learner typed into the field of ``before``, when this cell ran last, stays.
        """
        if before is not None and before.touched:
            self._field.value = before.value
        handle = show.display(self._line(), display_id=True)
        if show.in_notebook():
            show.display(self._field)
            self._field.observe(lambda _: handle.update(self._line()), names="value")

    def score(self, measured: Any) -> None:
        """Show guess, model and measurement as bars over decades, with their ratios, and record them.

        What is not positive and finite has no ratio: a line says so.
        """
        measured = float(measured)
        ratio, model_ratio = _ratio(self.value, measured), _ratio(self.model, measured)
        whose = "Your guess" if self.touched else "The default guess"
        bars, words = [("measured", measured)], []
        if self.model is not None and model_ratio is not None:
            bars.insert(0, ("model", self.model))
            words.append(f"the model is {_off(model_ratio)}")
        if ratio is not None:
            bars.insert(0, ("guess", self.value))
            words.insert(0, f"{whose} is {_off(ratio)}")
        else:
            words.insert(0, f"{whose}, {self.value:g} {self.unit}, is not a positive number: it cannot be scored")
        if _ratio(measured, 1.0) is None:
            why = f"{measured:g} {self.unit}: not a positive number, so there is nothing to compare"
            show.display(show.line(("measured", why)))
        else:
            show.display(show.log_bars("; ".join(words) + ".", bars, self.unit))
        self._writer.write(
            self.name, measured, self.unit, kind="prediction", question=self.question, measured=measured,
            guess=self.value, touched=self.touched, ratio=ratio, model=self.model, model_ratio=model_ratio,
        )  # fmt: skip

    def _line(self) -> show.Shown:
        return show.line((self.question, ""), ("guess", f"{self.value:g} {self.unit}"))


def _off(ratio: float) -> str:
    """How far from the measurement, in words: ``ratio`` is prediction over measurement."""
    if 0.95 <= ratio <= 1.05:
        return f"right within 5% ({ratio:.2f} of the measurement)"
    return f"{three(ratio)} × too high" if ratio > 1 else f"{three(1 / ratio)} × too low"


def _ratio(prediction: float | None, measured: float) -> float | None:
    if prediction is None or not all(math.isfinite(v) and v > 0 for v in (prediction, measured)):
        return None
    return prediction / measured
