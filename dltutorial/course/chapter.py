"""One chapter at work: it states claims and checks them, takes predictions and scores them, and keeps records.

In: a chapter number and a preset. Out: HTML in the notebook, and one record per claim, prediction and measurement
(``dltutorial.record.records``).

    chapter = Chapter("01", preset=preset)
    claim, predict, record = chapter.claim, chapter.predict, chapter.record

A claim is a *fact* (an equality, a count, bytes, an order), which holds on every machine, or a *measurement*
(``measured=True``: seconds, a ratio of seconds, a fit, a score), which another machine may turn around. Neither ends
the notebook when it does not hold: it is shown and recorded, and ``dltutorial run`` judges the facts at the end.
"""

from typing import Any

from dltutorial import config, machine, node
from dltutorial.course import show
from dltutorial.course.guess import Guess, positive
from dltutorial.errors import CourseError
from dltutorial.record import records

_OTHERWISE = "A measurement, not an error: another machine, or programs beside this one, can turn it around."


class Chapter:
    """The state of one chapter in one kernel: its number, its preset, where its records go."""

    def __init__(self, number: str, preset: str | config.Preset = "auto") -> None:
        """Resolve the preset and print the environment, once.

        Raises:
            RecipeError: there is no such preset.
            CourseError: DLTUTORIAL_NODE is neither login nor compute.
        """
        self.number = str(number)
        self.preset = preset if isinstance(preset, config.Preset) else config.preset(preset)
        self._writer = records.Writer(self.number, self.preset.name)
        self._guesses: dict[str, Guess] = {}
        versions = ", ".join(f"{name} {version}" for name, version in machine.versions().items() if version)
        show.display(
            show.line(
                ("chapter", self.number),
                ("preset", self.preset.name),
                ("machine", machine.label()),
                ("runs on", node.here().told),
                ("device", machine.device()),
                ("versions", versions),
            )
        )

    def claim(self, text: str, holds: Any, evidence: str, needs: str | None = None, *, measured: bool = False) -> None:
        """Show a sentence of the course with its evidence, and record it as "shown", "failed" or "otherwise".

        Args:
            text: the sentence.
            holds: True or False, of Python, NumPy or torch; None only with ``needs``, for what is not shown here.
            evidence: the numbers, with units.
            needs: the hardware that this claim needs, if any.
            measured: it rests on times, a fit or a score: where it does not hold, it came out otherwise on this
                machine. Without, it is a fact, and has failed.

        Raises:
            CourseError: ``holds`` is not a truth value.
        """
        if holds is None and needs:
            return self.not_shown(text, needs=needs, instead=evidence, measured=measured)
        status = "shown" if (holds := _truth(holds, text)) else "otherwise" if measured else "failed"
        show.display(show.box(status, text, evidence, _OTHERWISE if status == "otherwise" else ""))
        self._record_claim(text, holds, status, evidence, needs, measured)

    def not_shown(self, text: str, *, needs: str, instead: str = "", measured: bool = True) -> None:
        """Say that this machine cannot show ``text``, for want of ``needs``; it never counts as passed.

        Args:
            text: the sentence of the course.
            needs: what is missing, such as "a CUDA device".
            instead: what stands in its place, such as a recorded measurement with machine and date.
            measured: as for :meth:`claim`.
        """
        show.display(show.box("not shown here", text, f"This needs {needs}.", instead))
        self._record_claim(text, None, "not shown here", instead, needs, measured)

    def predict(self, name: str, question: str, unit: str, default: float, model: float | None = None) -> Guess:
        """Ask the learner for a number before it is measured; the field starts at ``default``.

        Args:
            name: short, for the records, such as "matmul_gflops".
            question: what is asked, a sentence.
            unit: of the guess, the model's value and the measurement.
            default: a plausible, not the right, value, so that the notebook also runs by itself.
            model: what a model (roofline, count of bytes, α–β) predicts, in the same unit; shown when the guess is
                scored, not before, so that the learner guesses first.

        Returns:
            The guess: ``guess.value`` now, ``guess.score(measured)`` later. Running the cell again keeps what the
            learner typed.

        Raises:
            CourseError: ``default`` or ``model`` is not a positive, finite number.
        """
        default = positive(default, f"default of prediction {name!r}")
        model = None if model is None else positive(model, f"model value of prediction {name!r}")
        before = self._guesses.get(name)
        value = before.value if before and before.touched else default
        self._guesses[name] = guess = Guess(self._writer, name, question, unit, default, value, model)
        guess.ask()
        return guess

    def record(self, what: str, value: Any, unit: str, **more: Any) -> None:
        """Append one measurement to the records.

        Raises:
            CourseError: the file cannot be written.
        """
        self._writer.write(what, value, unit, **more)

    def _record_claim(
        self, text: str, holds: bool | None, status: str, evidence: str, needs: str | None, measured: bool
    ) -> None:
        more = {"status": status, "evidence": evidence, "needs": needs, "measured": measured}
        self._writer.write(text, holds, kind="claim", **more)


def _truth(holds: Any, text: str) -> bool:
    """A bool of Python, NumPy or torch as Python's own; anything else (NaN, an array, a number) is an error."""
    value = holds
    if not isinstance(value, bool) and hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if not isinstance(value, bool):
        raise CourseError(
            f"claim {text!r}: holds={holds!r} is {type(holds).__name__}, not a truth value; compare, as in a < b"
        )
    return value
