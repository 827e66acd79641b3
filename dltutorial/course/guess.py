"""Take a learner's prediction in a number field, and compare it with the measurement in a picture.

The input is a question, a unit, a default, and perhaps the value of a model in the same unit. The output is the guess,
and one record of kind "prediction", whose value is the measurement. It also has the guess, the model's value, and the
ratio of model and measurement.
"""

import math

from dltutorial.course import show
from dltutorial.profile.timing import three
from dltutorial.record import records


class Guess:
    """A learner's prediction. The number in the field of the notebook is the guess."""

    def __init__(
        self,
        writer: records.Writer,
        name: str,
        question: str,
        unit: str,
        default: float,
        model: float | None,
    ) -> None:
        """Make the field, which :meth:`ask` shows. ``Chapter.predict`` explains the arguments."""
        import ipywidgets

        self.name = name
        self.question = question
        self.unit = unit
        self.model = model
        self._writer = writer
        self._default = float(default)
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

    def ask(self, previous: "Guess | None" = None) -> None:
        """Show the question, the guess as text (for pages without a kernel), and the field.

        Args:
            previous: The guess that this cell made when it ran last. What the learner typed into its field stays.
        """
        if previous is not None and previous.touched:
            self._field.value = previous.value
        handle = show.display(self._line(), display_id=True)
        if show.in_notebook():
            show.display(self._field)
            self._field.observe(lambda _: handle.update(self._line()), names="value")

    def score(self, measured: float, label: str = "measured") -> None:
        """Show guess, model and measurement as bars over decades with their ratios, and record them.

        If a value is not positive and finite, it has no ratio, and a line says so.

        Args:
            measured: The measurement in ``unit``, also as a scalar of NumPy or torch.
            label: What the value is if it was not measured, for example ``simulated``, ``counted`` or ``published``.
        """
        measured = float(measured)
        ratio = _ratio(self.value, measured)
        model_ratio = _ratio(self.model, measured)
        if _is_positive(measured):
            show.display(self._picture(measured, ratio, model_ratio, label))
        else:
            reason = f"{measured:g} {self.unit}: not a positive number, so there is nothing to compare"
            show.display(show.line((label, reason)))
        self._writer.write(
            self.name,
            measured,
            self.unit,
            kind="prediction",
            question=self.question,
            guess=self.value,
            touched=self.touched,
            model=self.model,
            model_ratio=model_ratio,
        )

    def _picture(self, measured: float, ratio: float | None, model_ratio: float | None, label: str) -> show.Shown:
        """Return the bars, with the ratios in words as their title."""
        whose = "Your guess" if self.touched else "The default guess"
        bars = []
        if ratio is None:
            words = [f"{whose}, {self.value:g} {self.unit}, is not a positive number: it cannot be scored"]
        else:
            bars.append(("guess", self.value))
            words = [f"{whose} is {_in_words(ratio)}"]
        if self.model is not None and model_ratio is not None:
            bars.append(("model", self.model))
            words.append(f"the model is {_in_words(model_ratio)}")
        bars.append((label, measured))
        return show.log_bars("; ".join(words) + ".", bars, self.unit)

    def _line(self) -> show.Shown:
        """Return the question and the guess in one line."""
        return show.line((self.question, ""), ("guess", f"{self.value:g} {self.unit}"))


def _in_words(ratio: float) -> str:
    """Describe the ratio of a prediction and the measurement."""
    if 0.95 <= ratio <= 1.05:
        return f"right within 5% (ratio {ratio:.2f})"
    if ratio > 1:
        return f"{three(ratio)} × too high"
    return f"{three(1 / ratio)} × too low"


def _ratio(prediction: float | None, measured: float) -> float | None:
    """Return prediction / measured, or None if one of them is not positive and finite."""
    if prediction is None or not _is_positive(prediction) or not _is_positive(measured):
        return None
    return prediction / measured


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
