"""The state of one chapter in a notebook: check claims, take and score predictions, and write records.

The input is the number of a chapter and a preset. The output is HTML in the notebook, and one record per claim,
prediction and measurement (``dltutorial.record.records``).

    chapter = Chapter("01", preset=preset)
    claim, predict, record = chapter.claim, chapter.predict, chapter.record

A claim is a *fact* or a *measurement*. A fact (an equality, a count, bytes, an order) holds on every machine. A
measurement (``measured=True``: seconds, a ratio of seconds, a fit, a score) may come out differently on another
machine. A claim that does not hold is shown and recorded, and the notebook goes on. ``dltutorial run`` judges the facts
at the end. A claim about several values gets them all, so that a claim without values fails:

    claim("Each rank has the sum", [rank_sum == 10 for rank_sum in sums], f"sums {sums}")
"""

from typing import Any

from dltutorial import advice, config, machine, node
from dltutorial.course import programs, scripts, show
from dltutorial.course.guess import Guess
from dltutorial.errors import CourseError
from dltutorial.record import records

_DIFFERENT = "A measurement, not an error: on another machine, or beside other programs, it can come out differently."
_NO_VALUE = "There is no value behind this claim. Look for a program or a cell above that printed no results."


class Chapter:
    """The state of one chapter in one kernel: its number, its preset, its predictions and its records.

    Attributes:
        number: such as "01", or "01-further" for the notebook in ``notebooks/further``.
        preset: the sizes that this kernel uses.
    """

    def __init__(self, number: str, preset: str) -> None:
        """Choose the preset and show the environment. From now on, tracebacks end with advice.

        Args:
            number: The number of the chapter, such as "01" or "01-further".
            preset: The name of the preset, or "auto".

        Raises:
            RecipeError: There is no such preset.
            CourseError: DLTUTORIAL_NODE is neither login nor compute.
        """
        self.number = number
        self.preset = config.preset(preset)
        scripts.prepare()
        self._writer = records.Writer(self.number, self.preset.name)
        self._guesses: dict[str, Guess] = {}
        versions = ", ".join(f"{name} {version}" for name, version in machine.versions().items() if version)
        environment = show.line(
            ("chapter", self.number),
            ("preset", self.preset.name),
            ("machine", machine.label()),
            ("runs on", node.description()),
            ("device", machine.device()),
            ("versions", versions),
        )
        show.display(environment)
        advise_below_tracebacks()

    def claim(
        self,
        text: str,
        holds: Any,
        evidence: str,
        needs: str | None = None,
        *,
        measured: bool = False,
    ) -> None:
        """Show a sentence of the course with its evidence, and record it with its status.

        The status is "shown" if the claim holds, "failed" if a fact does not hold, "different here" if a measurement
        does not hold, and "not shown here" if the claim needs hardware that this machine lacks. A claim without values
        is "failed", because a program has probably printed no results.

        Args:
            text: The sentence.
            holds: True or False, of Python, NumPy or torch. Or a list or tuple of these: the claim holds if all are
                true, and it fails if the list is empty. None means that this machine lacks the hardware that ``needs``
                names. Without ``needs``, None means that there is no value, and the claim fails.
            evidence: The numbers with their units, or what stands in their place.
            needs: The hardware that this claim needs, if any, such as "a CUDA device".
            measured: Whether the claim rests on times, a fit or a score. Otherwise it is a fact.

        Raises:
            CourseError: ``holds`` is not a truth value.
        """
        lines = [("", evidence)] if evidence else []
        if holds is None and needs:
            status = "not shown here"
            lines.insert(0, ("", f"This needs {needs}."))
        elif _has_no_value(holds):
            status = "failed"
            holds = False
            lines.append(("", _NO_VALUE))
        else:
            holds = _truth(holds, text)
            status = _status(holds, measured)
        if status == "different here":
            lines.append(("", _DIFFERENT))
        show.display(show.box(status, text, lines))
        self._writer.write(text, holds, kind="claim", status=status, evidence=evidence, needs=needs, measured=measured)

    def predict(self, name: str, question: str, unit: str, default: float, model: float | None = None) -> Guess:
        """Ask the learner for a number before it is measured.

        If the cell runs again, the number that the learner typed stays.

        Args:
            name: A short name for the records, such as "matmul_gflops".
            question: The question, as a sentence.
            unit: The unit of the guess, of the model's value and of the measurement.
            default: A plausible positive value, which is not the right one. With it, the notebook runs without a
                learner.
            model: What a model predicts (roofline, count of bytes, α–β). It is shown when the guess is scored, not
                earlier. A value that is not a positive number is left out.

        Returns:
            The guess. Its number is ``guess.value``, and ``guess.score(measured)`` compares it with a measurement.
        """
        model_value = None if model is None else float(model)
        guess = Guess(self._writer, name, question, unit, default, model_value)
        guess.ask(self._guesses.get(name))
        self._guesses[name] = guess
        return guess

    def record(self, what: str, value: Any, unit: str, **more: Any) -> None:
        """Append one measurement to the records.

        Raises:
            CourseError: The file cannot be written.
        """
        self._writer.write(what, value, unit, **more)


def advise_below_tracebacks() -> None:
    """From now on, show advice below each traceback in this notebook, if ``advice`` has one.

    An error of the course gets none, because its message says what to do. A second call changes nothing.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", _after_cell)


def _after_cell(result: Any) -> None:
    """Show the advice for the error of a cell, which IPython calls after each cell."""
    error = result.error_in_exec or result.error_before_exec
    if error is None:
        return
    todo = programs.how_to_get(str(error)) if isinstance(error, ModuleNotFoundError) else ""
    entry = advice.of(error)
    if not todo and entry is not None:
        todo = entry.do
    if todo:
        show.display(show.advice(todo))


def _has_no_value(holds: Any) -> bool:
    """Return whether ``holds`` is None, an empty list or an empty tuple."""
    return holds is None or (isinstance(holds, list | tuple) and not holds)


def _status(holds: bool, measured: bool) -> str:
    """Return the status of a claim that this machine can show."""
    if holds:
        return "shown"
    return "different here" if measured else "failed"


def _truth(holds: Any, text: str) -> bool:
    """Return a bool of Python, NumPy or torch as Python's own. For a list, return whether all its bools are true.

    Raises:
        CourseError: It is anything else, such as NaN, an array or a number.
    """
    if isinstance(holds, list | tuple):
        return all(_truth(item, text) for item in holds)
    is_scalar = hasattr(holds, "item") and getattr(holds, "ndim", 0) == 0
    value = holds.item() if is_scalar else holds
    if isinstance(value, bool):
        return value
    what = f"holds={holds!r} is {type(holds).__name__}, not a truth value"
    raise CourseError(f"claim {text!r}: {what}; compare, as in a < b")
