"""One chapter at work: it states claims and checks them, takes predictions and scores them, and keeps records.

In: a chapter number and a preset. Out: HTML in the notebook, and one record per claim, prediction and measurement
(``dltutorial.record.records``).

    chapter = Chapter("01", preset=preset)
    claim, predict, record = chapter.claim, chapter.predict, chapter.record

A claim is a *fact* (an equality, a count, bytes, an order), which holds on every machine, or a *measurement*
(``measured=True``: seconds, a ratio of seconds, a fit, a score), which another machine may turn around. Neither ends
the notebook when it does not hold: it is shown and recorded, and ``dltutorial run`` judges the facts at the end.
"""

import sys
from typing import Any

from dltutorial import advice, config, machine, node
from dltutorial.course import scripts, show
from dltutorial.course.guess import Guess
from dltutorial.errors import CourseError
from dltutorial.record import records

_OTHERWISE = "A measurement, not an error: another machine, or programs beside this one, can turn it around."


class Chapter:
    """The state of one chapter in one kernel: its number, its preset, where its records go."""

    def __init__(self, number: str, preset: str | config.Preset = "auto") -> None:
        """Resolve the preset and print the environment, once; from now on tracebacks end with a sentence of advice.

        Raises:
            RecipeError: there is no such preset.
            CourseError: DLTUTORIAL_NODE is neither login nor compute.
        """
        self.number = str(number)
        scripts.prepare()
        self.preset = preset if isinstance(preset, config.Preset) else config.preset(preset)
        self._writer = records.Writer(self.number, self.preset.name)
        self._guesses: dict[str, Guess] = {}
        versions = ", ".join(f"{name} {version}" for name, version in machine.versions().items() if version)
        where = ("machine", machine.label()), ("runs on", node.told()), ("device", machine.device())
        show.display(show.line(("chapter", self.number), ("preset", self.preset.name), *where, ("versions", versions)))
        advise_below_tracebacks()

    def claim(
        self, text: str, holds: Any, evidence: str, needs: str | None = None, *,
        measured: bool = False, folded: bool = False,
    ) -> None:  # fmt: skip
        """Show a sentence of the course with its evidence, and record it: "shown", "failed", "otherwise".

        What needs hardware that is not there has ``holds`` None: it is "not shown here", and never counts as passed.

        Args:
            text: the sentence.
            holds: True or False, of Python, NumPy or torch; None only with ``needs``.
            evidence: the numbers, with units; of what is not shown here, what stands in their place.
            needs: the hardware that this claim needs, if any, such as "a CUDA device".
            measured: it rests on times, a fit or a score: where it does not hold, it came out otherwise on this
                machine. Without, it is a fact, and has failed.
            folded: one of those that matter less: while it holds, its evidence unfolds at a click.

        Raises:
            CourseError: ``holds`` is not a truth value.
        """
        if holds is None and needs:
            status, details = "not shown here", [f"This needs {needs}.", evidence]
        else:
            holds = _truth(holds, text)
            status = "shown" if holds else "otherwise" if measured else "failed"
            details = [evidence, _OTHERWISE if status == "otherwise" else ""]
        lines = [("", detail) for detail in details if detail]
        show.display(show.box(status, text, lines, folded=folded and status == "shown"))
        self._writer.write(text, holds, kind="claim", status=status, evidence=evidence, needs=needs, measured=measured)

    def predict(self, name: str, question: str, unit: str, default: float, model: float | None = None) -> Guess:
        """Ask the learner for a number before it is measured; the field starts at ``default``.

        Args:
            name: short, for the records, such as "matmul_gflops".
            question: what is asked, a sentence.
            unit: of the guess, the model's value and the measurement.
            default: a plausible, not the right, positive value, so that the notebook also runs by itself.
            model: what a model (roofline, count of bytes, α–β) predicts, in the same unit; shown when the guess is
                scored, not before, so that the learner guesses first. Where it is no positive number, it is left out.

        Returns:
            The guess: ``guess.value`` now, ``guess.score(measured)`` later. Running the cell again keeps what the
            learner typed.
        """
        guess = Guess(self._writer, name, question, unit, default, None if model is None else float(model))
        guess.ask(self._guesses.get(name))
        self._guesses[name] = guess
        return guess

    def record(self, what: str, value: Any, unit: str, **more: Any) -> None:
        """Append one measurement to the records. CourseError: the file cannot be written."""
        self._writer.write(what, value, unit, **more)


def advise_below_tracebacks() -> None:
    """From now on, a cell of this notebook that fails gets a sentence of what to do, where ``advice`` knows one.

    An error of the course has its advice in its own words and gets none. Calling this again changes nothing.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(result: Any) -> None:
    error = result.error_in_exec or result.error_before_exec
    if error is not None and (found := advice.of(error)):
        show.display(show.advice(found.do))


def _truth(holds: Any, text: str) -> bool:
    """A bool of Python, NumPy or torch as Python's own; anything else (NaN, an array, a number) is an error."""
    value = holds.item() if hasattr(holds, "item") and getattr(holds, "ndim", 0) == 0 else holds
    if isinstance(value, bool):
        return value
    what = f"holds={holds!r} is {type(holds).__name__}, not a truth value"
    raise CourseError(f"claim {text!r}: {what}; compare, as in a < b")
