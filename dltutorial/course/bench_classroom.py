"""``dltutorial bench classroom``: how long the page of a class takes.

In: how often; sizes do not matter. Out: a row for 40 learners and one for 200, with a day's records each and a budget
of 2 s for the larger class. The records are made up, in the form and number of real ones; they lie in a temporary
folder, and nothing else ever sees them.
"""

import datetime
import math
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dltutorial.course.bench_rows import Options, Row
from dltutorial.course.classroom import names, view
from dltutorial.course.classroom.schedule import SCHEDULES
from dltutorial.course.classroom.wording import Wording, of_course
from dltutorial.record import sharing

Mistakes = Mapping[str, Sequence[tuple[str, str, str]]]  # chapter → (exercise, case that fails, hint)

_BUDGET_S = 2.0
_MACHINES = {
    "ladder_gain": ("07", 2.75, "×"),
    "loader: a thread reads ahead": ("03", 7.8e3, "samples/s"),
    "peak matmul fp32": ("00", 1.03e11, "FLOP/s"),
    "peak memory copy": ("00", 2.4e10, "bytes/s"),
    "samples_per_s": ("01", 75.0, "samples/s"),
}


def classroom(options: Options) -> Iterator[Row]:
    """The page, from the folder to the file on disk."""
    words = of_course()
    for n, budget in ((40, None), (200, _BUDGET_S)):
        with tempfile.TemporaryDirectory() as place:
            folder, out = Path(place) / "class", Path(place) / "class.html"
            folder.mkdir()
            simulated(folder, n, words, some_mistakes(words))
            samples = tuple(_timed(folder, out, words) for _ in range(options.repeats))
            lines = sum(file.read_bytes().count(b"\n") for file in folder.iterdir())
            more = {"lines": f"{lines:,}", "page": f"{out.stat().st_size / 1e3:,.0f} kB"}
            yield Row(f"the page of {n} learners", samples, budget=budget, more=more)


def some_mistakes(words: Wording) -> Mistakes:
    """Placeholders in the length of real hints, two for each chapter."""
    text = "a made-up misconception, as long as the hint of a check usually is, no more and no less"
    return {
        chapter: [("exercise_" + chapter, "a case", f"Number {n}: {text}.") for n in (1, 2)] for chapter in words.titles
    }


def simulated(
    folder: Path, n: int, words: Wording, mistakes: Mistakes, seed: int = 0, since_start_min: float = 330.0
) -> None:
    """Fill a class's folder as if ``n`` learners had worked there along the one-day schedule.

    Args:
        folder: that the class shares.
        n: learners.
        words: of the course: which predictions a chapter asks for.
        mistakes: that their checks meet.
        seed: of everything that is up to chance, names excepted.
        since_start_min: how long ago the day began.
    """
    chance = random.Random(seed)
    chapters = [(slot.chapter, slot.minutes) for slot in SCHEDULES["one-day"] if slot.chapter and not slot.exercise]
    for _ in range(n):
        pace = math.exp(chance.gauss(0, 0.15))
        lazy = chance.random() < 0.08
        at_min, events = 15.0, []
        for chapter, minutes in chapters:
            length_min = pace * minutes * 1.1
            work = sorted(_work(chapter, words, mistakes, chance, pace), key=lambda pair: pair[0])
            events += [(at_min + part * length_min, record | {"chapter": chapter}) for part, record in work]
            at_min += length_min
        end_min = since_start_min * (chance.uniform(0.6, 0.95) if lazy else 1.0)
        _write(folder, [(at, record) for at, record in events if at <= end_min], since_start_min)


def _work(
    chapter: str, words: Wording, mistakes: Mistakes, chance: random.Random, pace: float
) -> Iterator[tuple[float, dict[str, Any]]]:
    """(part of the chapter's time, record) of one learner in one chapter."""
    for number in range(10):
        yield (number + 1) / 12, {"kind": "claim", "what": "a claim", "status": "shown"}
    for number, (_, name) in enumerate(key for key in words.questions if key[0] == chapter):
        truth = 10 ** ((len(name) * 7 % 5) / 2)
        guess = truth * math.exp(chance.gauss(-0.7, 1.0))
        yield 0.3 + 0.2 * number, {
            "kind": "prediction", "what": name, "unit": "×", "guess": float(f"{guess:.2g}"),
            "touched": chance.random() < 0.8, "measured": truth * math.exp(chance.gauss(0, 0.1)),
        }  # fmt: skip
    for what, (where, value, unit) in _MACHINES.items():
        if where == chapter:
            measured = value * math.exp(chance.gauss(0, 0.25))
            yield 0.8, {"kind": "measurement", "what": what, "value": measured, "unit": unit, "preset": "smoke"}
    tries = min(7, int(pace * chance.expovariate(0.35)))
    of_chapter = mistakes.get(chapter, ())
    for number in range(tries if of_chapter else 0):
        exercise, case, hint = of_chapter[min(len(of_chapter) - 1, int(chance.expovariate(0.5)))]
        told = {"what": exercise, "status": "wrong", "failed": case, "hint": hint}
        yield 0.5 + 0.07 * number, {"kind": "check", **told}
    if of_chapter:
        told = {"what": of_chapter[0][0], "status": "passed", "failed": "", "hint": ""}
        yield 0.5 + 0.07 * tries, {"kind": "check", **told}


def _write(folder: Path, events: list[tuple[float, dict[str, Any]]], since_start_min: float) -> None:
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=since_start_min)
    file = folder / f"{names.pseudonym()}.jsonl"
    lines = []
    for at_min, record in events:
        when = (start + datetime.timedelta(minutes=at_min)).isoformat()
        lines.append(sharing.shared_line({"time": when, **record}) or "")
    sharing.append(file, "".join(lines))


def _timed(folder: Path, out: Path, words: Wording) -> float:
    began_s = time.perf_counter()
    view.write(folder, out, words)
    return time.perf_counter() - began_s
