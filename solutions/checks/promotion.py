"""Checks of chapter 20's exercise: which configuration runs next if workers come and go, and some die.

The answer is a class with the methods ``ask``, ``tell`` and ``lost`` of asynchronous successive halving. Each case
sends a fixed list of events to the answer, and compares what ``ask`` returns. The last case sends random events to the
answer and to a reference, ``Promotion``. A message shows all events before the first difference.

Source: Li et al. 2020, arXiv:1810.05934
"""

import math
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case

ETA = 3  # one of so many configurations is promoted
N_RUNGS = 3
_N_CONFIGS = 30  # of a random history
_N_HISTORIES = 200
_N_EVENTS = 80
_N_WORKERS = 4
_SHOWN_IN_LINE = 6
Job = tuple[int, int]  # the numbers of the configuration and of the rung
# ("ask", a possible job, another one, …), ("tell", configuration, rung, error) or ("lost", configuration, rung)
Event = tuple[Any, ...]


class Promotion:
    """The correct answer: asynchronous successive halving.

    Attributes:
        errors: For each rung, the error of each configuration that has arrived, in the order of arrival.
        promoted: For each rung, the configurations that were promoted from it.
    """

    def __init__(self, configs: Iterable[int], n_rungs: int = N_RUNGS, eta: int = ETA) -> None:
        """Nothing has run yet."""
        self._new_configs = iter(configs)
        self._lost_configs: list[int] = []
        self._eta = eta
        self.errors: list[dict[int, float]] = [{} for _ in range(n_rungs)]
        self.promoted: list[set[int]] = [set() for _ in range(n_rungs)]

    def ask(self) -> Job | None:
        """Return the next job, or None if there is nothing to do now."""
        for rung in reversed(range(len(self.errors) - 1)):
            for config in self._best(rung):
                if config not in self.promoted[rung]:
                    self.promoted[rung].add(config)
                    return config, rung + 1
        if self._lost_configs:
            return self._lost_configs.pop(0), 0
        new_config = next(self._new_configs, None)
        return None if new_config is None else (new_config, 0)

    def _best(self, rung: int) -> list[int]:
        """Return the best configurations of a rung, without those that have diverged."""
        errors = self.errors[rung]
        best = sorted(errors, key=lambda config: errors[config])[: len(errors) // self._eta]
        return [config for config in best if math.isfinite(errors[config])]

    def tell(self, config: int, rung: int, error: float) -> None:
        """Take the error of a configuration. One that has diverged is the last of all."""
        self.errors[rung][config] = error if math.isfinite(error) else math.inf

    def lost(self, config: int, rung: int) -> None:
        """Take back a job whose worker has died."""
        if rung:
            self.promoted[rung - 1].discard(config)
        else:
            self._lost_configs.append(config)


class _Difference(NamedTuple):
    """The first difference between the answer and the reference in a random history."""

    expected: Any
    got: Any
    history: list[str]


class _Day(NamedTuple):
    """A fixed list of events, which is one case.

    Attributes:
        name: The name of the case.
        hint: The hint for a wrong answer.
        events: The events.
        n_configs, n_rungs, eta: The arguments of the learner's class.
    """

    name: str
    hint: str
    events: list[Event]
    n_configs: int = 9
    n_rungs: int = N_RUNGS
    eta: int = ETA


def _check(fn: Callable, day: _Day) -> None:
    """Send the events to the answer. After "ask", the answer must return one of the jobs that the event names."""
    answer = fn(range(day.n_configs), day.n_rungs, day.eta)
    history: list[str] = []
    for kind, *arguments in day.events:
        try:
            if kind == "ask":
                got = _as_job(answer.ask())
            else:
                getattr(answer, kind)(*arguments)
        except Exception as error:
            error.add_note(day.hint)
            raise
        if kind != "ask":
            history.append(f"{kind}{tuple(arguments)}")
            continue
        if got not in arguments:
            raise _wrong(_Difference(" or ".join(map(str, arguments)), got, history), day.hint)
        history.append(f"ask → {got}")


def _as_job(got: Any) -> Any:
    """Return a list as a tuple, and any other value as it is."""
    return tuple(got) if isinstance(got, list) else got


def _wrong(difference: _Difference, hint: str) -> Wrong:
    """Return the error with all events before the difference."""
    history = difference.history
    when = "after what is told below" if history else "at the beginning"
    lines = [", ".join(history[n : n + _SHOWN_IN_LINE]) for n in range(0, len(history), _SHOWN_IN_LINE)]
    return Wrong(f"ask() → {difference.expected}, {when}", difference.got, hint, "\n".join(lines))


def _arrivals(errors: Iterable[float], rung: int = 0, first: int = 0) -> list[Event]:
    """Return events in which consecutive configurations arrive with these errors."""
    return [("tell", config, rung, error) for config, error in enumerate(errors, first)]


def _asks(*jobs: Job | None) -> list[Event]:
    """Return events in which workers ask one after the other, and these jobs are the correct answers."""
    return [("ask", job) for job in jobs]


def _new(n: int, first: int = 0) -> list[Event]:
    """Return events in which n new configurations begin."""
    return _asks(*((config, 0) for config in range(first, first + n)))


_BEGIN = "Nobody has arrived: the next config begins, at rung 0; when there are none left, None."
_THIRD = "The best third of those that have arrived, rounded down: of 3 one, of 5 one, of 6 two."
_TWICE = "It was promoted before: a config passes a rung once."
_HIGH = "Two rungs have somebody to promote: the higher one first, where most has been spent."
_WITHIN_RUNG = "Compare within a rung: an error after a ninth is no error after a third."
_WAIT = "Others still run, and nobody waits for them: decide by those that have arrived."
_NAN = "A diverged config has no error to be compared: it never goes on, but it has arrived."
_LOST_0 = "Its worker died, so it never arrived: it begins once more, before new ones."
_LOST_1 = "Its worker died at the higher rung: the promotion counts for nothing, and is to be given again."
_STILL = "What it has reached at the rung below still stands there: only the promotion is taken back."
_END = "Nothing to do now is not the end: later arrivals may promote somebody."
_OVER = "Only the best third of those that have arrived *now*: one that was promoted before may have left it."
_LAST = "Nobody goes on from the last rung; how many rungs there are, and eta, are given to __init__."
_FIRST = "Of two with one error the first that arrived goes on: keep them in that order."
_BEFORE = "Promotions come before all that begins at rung 0, also before what was lost there."
_QUEUE = "Several were lost at rung 0: the one that was lost first begins first."
_TIES = "With equal errors, too, no more than one in eta goes on."


def _check_random_histories(fn: Callable) -> None:
    """Two hundred random days with deaths"""
    differences = []
    for seed in range(_N_HISTORIES):
        difference = _compare_random_history(fn, random.Random(seed), with_deaths=seed % 2 == 1)
        if difference:
            differences.append(difference)
    if differences:
        shortest = min(differences, key=lambda difference: len(difference.history))
        deaths = "with" if any("lost" in event for event in shortest.history) else "without"
        raise _wrong(shortest, f"All cases above pass; this is a day {deaths} a death: play it on paper.")


def _compare_random_history(fn: Callable, generator: random.Random, with_deaths: bool) -> _Difference | None:
    """Send random events to the answer and to the reference until their jobs differ."""
    answer = fn(range(_N_CONFIGS), N_RUNGS, ETA)
    reference = Promotion(range(_N_CONFIGS))
    history: list[str] = []
    running: list[Job] = []
    for _ in range(_N_EVENTS):
        if len(running) < _N_WORKERS and generator.random() < 0.6:
            expected = reference.ask()
            got = _as_job(answer.ask())
            if got != expected:
                return _Difference(expected, got, history)
            history.append(f"ask → {expected}")
            if expected:
                running.append(expected)
        elif running:
            job = running.pop(generator.randrange(len(running)))
            error = round(generator.random() / 3 ** job[1], 3)
            history.append(_end_job([answer, reference], job, error, dies=with_deaths and error < 0.1))
    return None


def _end_job(schedulers: list[Any], job: Job, error: float, dies: bool) -> str:
    """Let a job arrive, or its worker die, and return the event as text."""
    for scheduler in schedulers:
        if dies:
            scheduler.lost(*job)
        else:
            scheduler.tell(*job, error)
    return f"lost{job}" if dies else f"tell{(*job, error)}"


_THREE_ARRIVED = [*_new(3), *_arrivals((0.5, 0.2, 0.4))]  # configuration 1 is the best
_PROMOTED = [*_THREE_ARRIVED, *_asks((1, 1))]
_FOUR_ARRIVED = [*_new(4), *_arrivals((0.5, 0.2, 0.4, 0.1))]
_DAYS = (
    _Day("At first new ones begin, and in the end there is nothing", _BEGIN, [*_new(2), *_asks(None)], n_configs=2),
    _Day("Of three arrived the best goes on", _THIRD, [*_PROMOTED, *_asks((3, 0))]),
    _Day(
        "Of two arrived none does, of five one",
        _THIRD,
        [
            *_new(5),
            *_arrivals((0.5, 0.2)),
            *_asks((5, 0)),
            *_arrivals((0.4, 0.6, 0.3), first=2),
            *_asks((1, 1), (6, 0)),
        ],
    ),
    _Day("Nobody waits for those that run", _WAIT, [*_new(6), *_arrivals((0.5, 0.2, 0.4)), *_asks((1, 1))]),
    _Day(  # of six two go on: 5, and 1, which was promoted before
        "Nobody goes on twice",
        _TWICE,
        [*_PROMOTED, *_new(3, first=3), *_arrivals((0.3, 0.45, 0.1), first=3), *_asks((5, 1), (6, 0))],
    ),
    _Day(
        "One that was overtaken takes no place",
        _OVER,
        [*_new(4), *_arrivals((0.8, 0.5, 0.1)), *_asks((2, 1)), ("tell", 3, 0, 0.05), *_asks((3, 1))],
    ),
    _Day(
        "Who was overtaken before anybody asked does not go on",
        _OVER,
        [*_FOUR_ARRIVED, *_asks((3, 1), (4, 0))],
    ),
    _Day(
        "The higher rung first, and each rung for itself",
        f"{_HIGH} {_WITHIN_RUNG}",
        [
            *_new(9),
            *_arrivals(n / 10 for n in range(9)),
            *_asks((0, 1), (1, 1), (2, 1)),
            *_new(3, first=9),
            *_arrivals((0.9, 0.8, 0.95), rung=1),
            *_arrivals((-0.1, -0.2, -0.3), first=9),
            *_asks((1, 2), (11, 1)),
        ],
        n_configs=12,
    ),
    _Day(
        "Of equal ones one",
        _TIES,
        [*_new(3), *_arrivals((0.3, 0.3, 0.3)), ("ask", (0, 1), (1, 1), (2, 1)), *_asks((3, 0))],
    ),
    _Day(
        "Of equal ones the first that arrived",
        _FIRST,
        [
            *_new(5),
            *_arrivals((0.4, 0.3), first=3),
            *_arrivals((0.3, 0.5, 0.3)),
            *_asks((4, 1), (5, 0)),
            ("tell", 5, 0, 0.3),
            *_asks((0, 1)),
        ],
    ),
    _Day(
        "Two rungs, of which each second one passes",
        _LAST,
        [*_FOUR_ARRIVED, *_asks((3, 1), (1, 1)), ("tell", 3, 1, 0.05), ("tell", 1, 1, 0.06), *_asks((4, 0))],
        n_rungs=2,
        eta=2,
    ),
    _Day(
        "A diverged one never goes on",
        _NAN,
        [
            *_new(3),
            *_arrivals((math.nan, 0.2, math.inf)),
            *_asks((1, 1)),
            *_new(3, first=3),
            *_arrivals((math.nan, -math.inf, math.nan), first=3),
            *_asks((6, 0)),
        ],
    ),
    _Day(
        "Lost at the first rung: once more",
        _LOST_0,
        [*_new(3), ("lost", 1, 0), *_asks((1, 0), (3, 0)), *_arrivals((0.5, 0.2, 0.4)), *_asks((1, 1))],
    ),
    _Day(
        "Two are lost at the first rung",
        _QUEUE,
        [*_new(3), ("lost", 2, 0), ("lost", 0, 0), *_asks((2, 0), (0, 0), (3, 0))],
    ),
    _Day(
        "One to promote, and one that was lost",
        _BEFORE,
        [*_new(4), ("lost", 3, 0), *_arrivals((0.5, 0.2, 0.4)), *_asks((1, 1), (3, 0))],
    ),
    _Day(
        "Lost at a higher rung: promoted once more",
        _LOST_1,
        [*_PROMOTED, ("lost", 1, 1), *_asks((1, 1), (3, 0))],
    ),
    _Day(
        "What a dead worker's config had reached before still counts",
        _STILL,
        [
            *_PROMOTED,
            ("lost", 1, 1),
            *_asks((1, 1)),
            *_new(3, first=3),
            *_arrivals((0.9, 0.8, 0.7), first=3),
            *_asks((2, 1)),
        ],
    ),
    _Day(
        "Nothing to do now is not the end",
        _END,
        [*_new(3), *_asks(None), *_arrivals((0.5, 0.2, 0.4)), *_asks((1, 1), None)],
        n_configs=3,
    ),
)
EXERCISE = Exercise(
    name="promotion",
    chapter="20",
    cases=(*(case(day.name, _check, day) for day in _DAYS), _check_random_histories),
    hints=(
        "Who may be compared with whom? Who has arrived, who runs, who was promoted, and who is gone?",
        "What does a worker's death undo: the result below, or the promotion? And at rung 0, where there was none?",
        "Which rung is looked at first, if a worker asks? What if nobody anywhere may go on?",
    ),
    code=("best = sorted(errors, key=errors.get)[: len(errors) // self.eta]",),
)
