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
N_LEVELS = 3
_N_CONFIGS = 30  # of a random history
_N_HISTORIES = 200
_N_EVENTS = 80
_N_WORKERS = 4
_SHOWN_IN_LINE = 6
Job = tuple[int, int]  # the numbers of the configuration and of the level
# ("ask", a possible job, another one, …), ("tell", configuration, level, error) or ("lost", configuration, level)
Event = tuple[Any, ...]


class Promotion:
    """The correct answer: asynchronous successive halving.

    Attributes:
        errors: For each level, the error of each configuration that has arrived, in the order of arrival.
        promoted: For each level, the configurations that were promoted from it.
    """

    def __init__(self, configs: Iterable[int], n_levels: int = N_LEVELS, eta: int = ETA) -> None:
        """Nothing has run yet."""
        self._new_configs = iter(configs)
        self._lost_configs: list[int] = []
        self._eta = eta
        self.errors: list[dict[int, float]] = [{} for _ in range(n_levels)]
        self.promoted: list[set[int]] = [set() for _ in range(n_levels)]

    def ask(self) -> Job | None:
        """Return the next job, or None if there is nothing to do now."""
        for level in reversed(range(len(self.errors) - 1)):
            for config in self._best(level):
                if config not in self.promoted[level]:
                    self.promoted[level].add(config)
                    return config, level + 1
        if self._lost_configs:
            return self._lost_configs.pop(0), 0
        new_config = next(self._new_configs, None)
        return None if new_config is None else (new_config, 0)

    def _best(self, level: int) -> list[int]:
        """Return the best configurations of a level, without those that have diverged."""
        errors = self.errors[level]
        best = sorted(errors, key=lambda config: errors[config])[: len(errors) // self._eta]
        return [config for config in best if math.isfinite(errors[config])]

    def tell(self, config: int, level: int, error: float) -> None:
        """Take the error of a configuration. One that has diverged is the last of all."""
        self.errors[level][config] = error if math.isfinite(error) else math.inf

    def lost(self, config: int, level: int) -> None:
        """Take back a job whose worker has died."""
        if level:
            self.promoted[level - 1].discard(config)
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
        n_configs, n_levels, eta: The arguments of the learner's class.
    """

    name: str
    hint: str
    events: list[Event]
    n_configs: int = 9
    n_levels: int = N_LEVELS
    eta: int = ETA


def _check(fn: Callable, day: _Day) -> None:
    """Send the events to the answer. After "ask", the answer must return one of the jobs that the event names."""
    answer = fn(range(day.n_configs), day.n_levels, day.eta)
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
    when = "after the events below" if history else "at the beginning"
    lines = [", ".join(history[n : n + _SHOWN_IN_LINE]) for n in range(0, len(history), _SHOWN_IN_LINE)]
    return Wrong(f"ask() → {difference.expected}, {when}", difference.got, hint, "\n".join(lines))


def _arrivals(errors: Iterable[float], level: int = 0, first: int = 0) -> list[Event]:
    """Return events in which consecutive configurations arrive with these errors."""
    return [("tell", config, level, error) for config, error in enumerate(errors, first)]


def _asks(*jobs: Job | None) -> list[Event]:
    """Return events in which workers ask one after the other, and these jobs are the correct answers."""
    return [("ask", job) for job in jobs]


def _new(n: int, first: int = 0) -> list[Event]:
    """Return events in which n new configurations begin."""
    return _asks(*((config, 0) for config in range(first, first + n)))


_BEGIN = "Nothing has arrived yet, so the next config begins at level 0. If no config is left, ask() returns None."
_THIRD = "Only the best third of the configs that have arrived may continue, rounded down: 1 of 3, 1 of 5, 2 of 6."
_TWICE = "This config was promoted before. A config is promoted only once from each level."
_HIGH = "Configs of two levels may be promoted. Take the higher one first, because most training was spent there."
_WITHIN_LEVEL = "Compare errors of the same level only, because an error after a short training is larger."
_WAIT = "Other jobs still run, but nobody waits for them. Decide by the configs that have arrived."
_NAN = "A config that has diverged never continues. But it has arrived, so it counts."
_LOST_0 = "Its worker died, so it has not arrived. It begins once more, before new configs."
_LOST_1 = "Its worker died on the higher level, so this promotion does not count. It may be promoted again."
_STILL = "Its error on the level below is still valid. Take back only the promotion."
_END = "If there is nothing to do now, the study has not ended. A later error may allow a promotion."
_OVER = "Only the best third of the configs that have arrived *now* may continue. A config may have left it."
_LAST = "No config continues from the last level. The number of levels and eta are given to __init__."
_FIRST = "If two errors are equal, the first that arrived continues. Keep the order of arrival."
_BEFORE = "Promotions come before everything that begins at level 0, also before what was lost there."
_QUEUE = "Several configs were lost at level 0. The one that was lost first begins first."
_TIES = "Also with equal errors, only 1 of eta configs continues."


def _check_random_histories(fn: Callable) -> None:
    """Two hundred random studies with deaths"""
    differences = []
    for seed in range(_N_HISTORIES):
        difference = _compare_random_history(fn, random.Random(seed), with_deaths=seed % 2 == 1)
        if difference:
            differences.append(difference)
    if differences:
        shortest = min(differences, key=lambda difference: len(difference.history))
        deaths = "with" if any("lost" in event for event in shortest.history) else "without"
        raise _wrong(shortest, f"All cases above pass. This random study is {deaths} a death, so play it on paper.")


def _compare_random_history(fn: Callable, generator: random.Random, with_deaths: bool) -> _Difference | None:
    """Send random events to the answer and to the reference until their jobs differ."""
    answer = fn(range(_N_CONFIGS), N_LEVELS, ETA)
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
    _Day("First new configs begin, and then there is nothing to do", _BEGIN, [*_new(2), *_asks(None)], n_configs=2),
    _Day("Three have arrived, and the best one continues", _THIRD, [*_PROMOTED, *_asks((3, 0))]),
    _Day(
        "Of two none continues, and of five one continues",
        _THIRD,
        [
            *_new(5),
            *_arrivals((0.5, 0.2)),
            *_asks((5, 0)),
            *_arrivals((0.4, 0.6, 0.3), first=2),
            *_asks((1, 1), (6, 0)),
        ],
    ),
    _Day("No worker waits for jobs that still run", _WAIT, [*_new(6), *_arrivals((0.5, 0.2, 0.4)), *_asks((1, 1))]),
    _Day(  # of six two go on: 5, and 1, which was promoted before
        "No config continues twice",
        _TWICE,
        [*_PROMOTED, *_new(3, first=3), *_arrivals((0.3, 0.45, 0.1), first=3), *_asks((5, 1), (6, 0))],
    ),
    _Day(
        "A promoted config that is no longer among the best takes no place",
        _OVER,
        [*_new(4), *_arrivals((0.8, 0.5, 0.1)), *_asks((2, 1)), ("tell", 3, 0, 0.05), *_asks((3, 1))],
    ),
    _Day(
        "A config that left the best third before the next ask does not continue",
        _OVER,
        [*_FOUR_ARRIVED, *_asks((3, 1), (4, 0))],
    ),
    _Day(
        "The higher level first, and each level is compared separately",
        f"{_HIGH} {_WITHIN_LEVEL}",
        [
            *_new(9),
            *_arrivals(n / 10 for n in range(9)),
            *_asks((0, 1), (1, 1), (2, 1)),
            *_new(3, first=9),
            *_arrivals((0.9, 0.8, 0.95), level=1),
            *_arrivals((-0.1, -0.2, -0.3), first=9),
            *_asks((1, 2), (11, 1)),
        ],
        n_configs=12,
    ),
    _Day(
        "Three equal errors, and one config continues",
        _TIES,
        [*_new(3), *_arrivals((0.3, 0.3, 0.3)), ("ask", (0, 1), (1, 1), (2, 1)), *_asks((3, 0))],
    ),
    _Day(
        "Equal errors, and the first that arrived continues",
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
        "Two levels, and every second config continues",
        _LAST,
        [*_FOUR_ARRIVED, *_asks((3, 1), (1, 1)), ("tell", 3, 1, 0.05), ("tell", 1, 1, 0.06), *_asks((4, 0))],
        n_levels=2,
        eta=2,
    ),
    _Day(
        "A config that has diverged never continues",
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
        "A config that is lost at level 0 begins once more",
        _LOST_0,
        [*_new(3), ("lost", 1, 0), *_asks((1, 0), (3, 0)), *_arrivals((0.5, 0.2, 0.4)), *_asks((1, 1))],
    ),
    _Day(
        "Two configs are lost at level 0",
        _QUEUE,
        [*_new(3), ("lost", 2, 0), ("lost", 0, 0), *_asks((2, 0), (0, 0), (3, 0))],
    ),
    _Day(
        "One config may be promoted, and another one was lost",
        _BEFORE,
        [*_new(4), ("lost", 3, 0), *_arrivals((0.5, 0.2, 0.4)), *_asks((1, 1), (3, 0))],
    ),
    _Day(
        "A config that is lost at level 1 is promoted again",
        _LOST_1,
        [*_PROMOTED, ("lost", 1, 1), *_asks((1, 1), (3, 0))],
    ),
    _Day(
        "The error on the level below remains after a death",
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
        "Which configs may be compared? Which have arrived, which still run, which were promoted, and which are lost?",
        "What does a death take back, the error below or the promotion? And at level 0, where no promotion was made?",
        "Which level comes first when a worker asks? What happens if no config may continue?",
    ),
    code=("best = sorted(errors, key=errors.get)[: len(errors) // self.eta]",),
)
