"""A leaderboard of the learner's own runs: records, no server.

In: attempts of a recipe, written as one record; the records of this and earlier runs. Out: a table. Recipes are ranked
by their median time to the target. One that missed it with any of its seeds stands below the others, without a rank
and without a time: "not reached". Only what is comparable stands in one table: the same task, machine and preset; of
a recipe that was run again, the newest.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dltutorial import machine, paths
from dltutorial.convergence.energy import Energy
from dltutorial.convergence.recipe import SolutionRecipe, Task
from dltutorial.errors import CourseError
from dltutorial.profile.timing import duration
from dltutorial.record import records
from dltutorial.record.table import Table

if TYPE_CHECKING:
    from dltutorial.convergence.attempt import Attempt

WHAT = "time to solution"
NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Entry:
    """One recipe on the board.

    Attributes:
        recipe: its knobs.
        seconds: to the target, the median over seeds; None if a seed missed it.
        device_s: the same, times its ranks.
        seeds, reached: how many were tried, how many got there.
        energy, usd: of one attempt, in words.
        where: task, machine and preset: only equal ones are compared.
        time: of the record.
    """

    recipe: SolutionRecipe
    seconds: float | None
    device_s: float | None
    seeds: int
    reached: int
    energy: str
    usd: str
    where: tuple[str, str, str]
    time: str


def write(
    writer: records.Writer,
    recipe: SolutionRecipe,
    task: Task,
    attempts: "Sequence[Attempt]",
    energy: Energy | None = None,
    usd: float | None = None,
) -> dict:
    """Append one recipe's attempts to the records.

    Raises:
        CourseError: no attempt, or the file cannot be written.
    """
    if not attempts:
        raise CourseError("no attempt to enter on the leaderboard; run the recipe with at least one seed")
    reached = [attempt for attempt in attempts if attempt.reached]
    whole = len(reached) == len(attempts)
    return writer.write(
        WHAT,
        statistics.median(a.seconds for a in reached) if whole else None,
        "s",
        recipe=dataclasses.asdict(recipe),
        task=_key(task),
        seeds=len(attempts),
        reached=len(reached),
        device_s=statistics.median(a.device_s for a in reached) if whole else None,
        energy=_short(energy),
        energy_how=energy.how if energy else "",
        usd=machine.UNKNOWN if usd is None else f"{usd:.2g}",
    )


def entries(found: Iterable[dict]) -> list[Entry]:
    """What is on the board, in the order in which it was recorded; records that are no entry are passed over."""
    newest: dict[tuple, Entry] = {}
    for record in found:
        entry = _entry(record) if record.get("what") == WHAT else None
        if entry is not None:
            newest[entry.where, entry.recipe] = entry
    return list(newest.values())


def here(preset: str, task: Task, file: Path | None = None) -> list[Entry]:
    """The entries of this machine for one task, from the records; none if there are no records yet.

    Raises:
        CourseError: the file of records is damaged.
    """
    file = file or paths.records_file()
    where = _key(task), machine.label(), preset
    return [entry for entry in entries(records.read(file)) if entry.where == where] if file.exists() else []


def ranked(found: Iterable[Entry]) -> list[tuple[int | None, Entry]]:
    """(rank, entry): the soonest first; those that missed the target last, with no rank."""
    found = list(found)
    there = sorted((e for e in found if e.seconds is not None), key=lambda e: e.seconds)
    missed = [(None, entry) for entry in found if entry.seconds is None]
    return [*enumerate(there, 1), *missed]


def table(found: Iterable[Entry]) -> Table:
    """The board; every entry must have been made for the same task on the same machine.

    Raises:
        CourseError: entries that cannot be compared.
    """
    found = list(found)
    places = {entry.where for entry in found}
    if len(places) > 1:
        raise CourseError(f"entries of {len(places)} tasks, machines or presets cannot be ranked together; take one")
    lines = [
        (
            f"{rank}." if rank else "–",
            entry.recipe.describe(SolutionRecipe()),
            duration(entry.seconds) if rank else NOT_REACHED,
            duration(entry.device_s) if rank else "–",
            f"{entry.reached} of {entry.seeds}",
            entry.energy,
            entry.usd,
        )
        for rank, entry in ranked(found)
    ]
    head = (
        "rank",
        "recipe: knobs that are not the defaults",
        "time to target",
        "device time",
        "seeds",
        "energy",
        "US$",
    )
    return Table.of(head, lines)


def _short(energy: Energy | None) -> str:
    """Joules, and whether they were measured; how is in the record."""
    if energy is None or energy.joules is None:
        return machine.UNKNOWN
    return f"{energy.joules:.3g} J, {'measured' if energy.measured else 'estimated'}"


def _key(task: Task) -> str:
    """A task in the records; other images of the same kind are the same task."""
    return repr(dataclasses.replace(task, seed=0))


def _entry(record: dict[str, Any]) -> Entry | None:
    """An entry, or None for a record that another version wrote in another form."""
    try:
        seconds = record["value"]
        return Entry(
            SolutionRecipe.of(record["recipe"]),
            None if seconds is None else float(seconds),
            None if seconds is None else float(record["device_s"]),
            int(record["seeds"]),
            int(record["reached"]),
            str(record["energy"]),
            str(record["usd"]),
            (str(record["task"]), record["machine"], record["preset"]),
            record["time"],
        )
    except (KeyError, TypeError, ValueError):
        return None
