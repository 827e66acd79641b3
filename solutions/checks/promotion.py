"""Checks of chapter 20's exercise: who runs next, when workers come and go, and some never come back.

Each case plays events against the learner's class, and says after which of them it asked for something else. The last
one plays long random days beside the rule itself.
"""

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from dltutorial.course.checks import Exercise, Wrong
from dltutorial.course.checks.cases import case

ETA, N_RUNGS = 3, 3
Job = tuple[int, int]  # config, rung


class Rule:
    """What is right."""

    def __init__(self, configs: Iterable[int], n_rungs: int = N_RUNGS, eta: int = ETA) -> None:
        self.configs, self.eta, self.again = iter(configs), eta, []
        self.errors: list[dict[int, float]] = [{} for _ in range(n_rungs)]
        self.promoted: list[set[int]] = [set() for _ in range(n_rungs)]

    def ask(self) -> Job | None:
        """The next job."""
        for rung in reversed(range(len(self.errors) - 1)):
            arrived = sorted(self.errors[rung], key=self.errors[rung].__getitem__)
            for config in arrived[: len(arrived) // self.eta]:
                if config not in self.promoted[rung] and math.isfinite(self.errors[rung][config]):
                    self.promoted[rung].add(config)
                    return config, rung + 1
        config = self.again.pop(0) if self.again else next(self.configs, None)
        return None if config is None else (config, 0)

    def tell(self, config: int, rung: int, error: float) -> None:
        """It has arrived; a diverged one last."""
        self.errors[rung][config] = error if math.isfinite(error) else math.inf

    def lost(self, config: int, rung: int) -> None:
        """Its worker died."""
        if rung:
            self.promoted[rung - 1].discard(config)
        else:
            self.again.append(config)


def _play(fn: Callable, n_configs: int, events: list[tuple], hint: str, n_rungs: int = N_RUNGS, eta: int = ETA) -> None:
    """``("ask", job, …)`` must give one of those; ``("tell", config, rung, error)`` and ``("lost", …)`` are told."""
    rule, story = fn(range(n_configs), n_rungs, eta), []
    for what, *given in events:
        try:
            got: Any = getattr(rule, what)(*(given if what != "ask" else ()))
        except Exception as error:
            error.add_note(hint)
            raise
        if what != "ask":
            story.append(f"{what}{tuple(given)}")
            continue
        got = tuple(got) if isinstance(got, list) else got
        if got not in given:
            raise _other(" or ".join(map(str, given)), got, story, hint)
        story.append(f"ask → {got}")


def _other(wanted: Any, got: Any, story: list[str], hint: str) -> Wrong:
    """It answered something else, after all that is in the story."""
    told = "\n".join(", ".join(story[n : n + 6]) for n in range(0, len(story), 6))
    return Wrong(f"ask() → {wanted}, {'after what is told below' if story else 'at the beginning'}", got, hint, told)


def _arrive(errors: Iterable[float], rung: int = 0, first: int = 0) -> list[tuple]:
    return [("tell", config, rung, error) for config, error in enumerate(errors, first)]


def _asks(n: int, first: int = 0) -> list[tuple]:
    return [("ask", (config, 0)) for config in range(first, first + n)]


_BEGIN = "Nobody has arrived: the next config begins, at rung 0; when there are none left, None."
_THIRD = "The best third of those that have arrived, rounded down: of 3 one, of 5 one, of 6 two."
_TWICE = "It was promoted before: a config passes a rung once."
_HIGH = "Two rungs have somebody to promote: the higher one first, where most has been spent."
_APART = "Compare within a rung: an error after a ninth is no error after a third."
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

_LATER = [("ask", (1, 1)), *_asks(3, 3), *_arrive((0.3, 0.45, 0.1), first=3)]  # of 6 two: 5, and 1 again


def _long_days(fn: Callable) -> None:
    """Two hundred random days with deaths"""
    found = [day for day in (_day(fn, random.Random(n), n % 2 > 0) for n in range(200)) if day]
    if found:
        wanted, got, story = min(found, key=lambda day: len(day[2]))
        deaths = "with" if any("lost" in told for told in story) else "without"
        hint = f"All cases above pass; this is a day {deaths} a death: play it on paper."
        raise _other(wanted, got, story, hint)


def _day(fn: Callable, draw: random.Random, deaths: bool) -> tuple | None:
    """What was wanted, what came, and all before it, if they differ."""
    rule, right, story = fn(range(30), N_RUNGS, ETA), Rule(range(30)), []
    running: list[Job] = []
    for _ in range(80):
        if len(running) < 4 and draw.random() < 0.6:
            wanted, got = right.ask(), rule.ask()
            got = tuple(got) if isinstance(got, list) else got
            if got != wanted:
                return wanted, got, story
            story.append(f"ask → {wanted}")
            running += [wanted] if wanted else []
        elif running:
            job = running.pop(draw.randrange(len(running)))
            error = round(draw.random() / 3 ** job[1], 3)
            dies = error < 0.1 and deaths
            story.append(f"lost{job}" if dies else f"tell{(*job, error)}")
            for one in (rule, right):
                one.lost(*job) if dies else one.tell(*job, error)
    return None


EXERCISE = Exercise(
    name="promotion",
    chapter="20",
    cases=(
        case("At first new ones begin, and in the end there is nothing", _play, 2, [*_asks(2), ("ask", None)], _BEGIN),
        case("Of three arrived the best goes on", _play, 9,
             [*_asks(3), *_arrive((0.5, 0.2, 0.4)), ("ask", (1, 1)), ("ask", (3, 0))], _THIRD),
        case("Of two arrived none does, of five one", _play, 9,
             [*_asks(5), *_arrive((0.5, 0.2)), ("ask", (5, 0)), *_arrive((0.4, 0.6, 0.3), first=2), ("ask", (1, 1)),
              ("ask", (6, 0))], _THIRD),
        case("Nobody waits for those that run", _play, 9,
             [*_asks(6), *_arrive((0.5, 0.2, 0.4)), ("ask", (1, 1))], _WAIT),
        case("Nobody goes on twice", _play, 9,
             [*_asks(3), *_arrive((0.5, 0.2, 0.4)), *_LATER, ("ask", (5, 1)), ("ask", (6, 0))], _TWICE),
        case("One that was overtaken takes no place", _play, 9,
             [*_asks(4), *_arrive((0.8, 0.5, 0.1)), ("ask", (2, 1)), ("tell", 3, 0, 0.05), ("ask", (3, 1))], _OVER),
        case("Who was overtaken before anybody asked does not go on", _play, 9,
             [*_asks(4), *_arrive((0.5, 0.2, 0.4, 0.1)), ("ask", (3, 1)), ("ask", (4, 0))], _OVER),
        case("The higher rung first, and each rung for itself", _play, 12,
             [*_asks(9), *_arrive(n / 10 for n in range(9)), ("ask", (0, 1)), ("ask", (1, 1)), ("ask", (2, 1)),
              *_asks(3, 9), *_arrive((0.9, 0.8, 0.95), rung=1), *_arrive((-0.1, -0.2, -0.3), first=9),
              ("ask", (1, 2)), ("ask", (11, 1))], f"{_HIGH} {_APART}"),
        case("Of equal ones one", _play, 9,
             [*_asks(3), *_arrive((0.3, 0.3, 0.3)), ("ask", (0, 1), (1, 1), (2, 1)), ("ask", (3, 0))], _TIES),
        case("Of equal ones the first that arrived", _play, 9,
             [*_asks(5), *_arrive((0.4, 0.3), first=3), *_arrive((0.3, 0.5, 0.3)), ("ask", (4, 1)), ("ask", (5, 0)),
              ("tell", 5, 0, 0.3), ("ask", (0, 1))], _FIRST),
        case("Two rungs, of which each second one passes", _play, 9,
             [*_asks(4), *_arrive((0.5, 0.2, 0.4, 0.1)), ("ask", (3, 1)), ("ask", (1, 1)), ("tell", 3, 1, 0.05),
              ("tell", 1, 1, 0.06), ("ask", (4, 0))], _LAST, n_rungs=2, eta=2),
        case("A diverged one never goes on", _play, 9,
             [*_asks(3), *_arrive((math.nan, 0.2, math.inf)), ("ask", (1, 1)), *_asks(3, 3),
              *_arrive((math.nan, -math.inf, math.nan), first=3), ("ask", (6, 0))], _NAN),
        case("Lost at the first rung: once more", _play, 9,
             [*_asks(3), ("lost", 1, 0), ("ask", (1, 0)), ("ask", (3, 0)), *_arrive((0.5, 0.2, 0.4)), ("ask", (1, 1))],
             _LOST_0),
        case("Two are lost at the first rung", _play, 9,
             [*_asks(3), ("lost", 2, 0), ("lost", 0, 0), ("ask", (2, 0)), ("ask", (0, 0)), ("ask", (3, 0))], _QUEUE),
        case("One to promote, and one that was lost", _play, 9,
             [*_asks(4), ("lost", 3, 0), *_arrive((0.5, 0.2, 0.4)), ("ask", (1, 1)), ("ask", (3, 0))], _BEFORE),
        case("Lost at a higher rung: promoted once more", _play, 9,
             [*_asks(3), *_arrive((0.5, 0.2, 0.4)), ("ask", (1, 1)), ("lost", 1, 1), ("ask", (1, 1)), ("ask", (3, 0))],
             _LOST_1),
        case("What a dead worker's config had reached before still counts", _play, 9,
             [*_asks(3), *_arrive((0.5, 0.2, 0.4)), ("ask", (1, 1)), ("lost", 1, 1), *_asks(0),
              ("ask", (1, 1)), *_asks(3, 3), *_arrive((0.9, 0.8, 0.7), first=3), ("ask", (2, 1))], _STILL),
        case("Nothing to do now is not the end", _play, 3,
             [*_asks(3), ("ask", None), *_arrive((0.5, 0.2, 0.4)), ("ask", (1, 1)), ("ask", None)], _END),
        _long_days,
    ),
    hints=(
        "Who may be compared with whom? Who has arrived, who runs, who was promoted, and who is gone?",
        "What does a worker's death undo: the result below, or the promotion? And at rung 0, where there was none?",
        "Which rung is looked at first, if a worker asks? What if nobody anywhere may go on?",
    ),
    code=("best = sorted(errors, key=errors.get)[: len(errors) // self.eta]",),
)  # fmt: skip
