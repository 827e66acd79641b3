"""A leaderboard of the learner's own runs: records, no server.

In: attempts of a recipe, written as one record; the records of this and earlier runs. Out: a table. Recipes are ranked
by their median time to the target. One that missed it with any of its seeds stands below the others, without a rank
and without a time: "not reached". Only what is comparable stands on one board: the same task, machine and preset; of
a recipe that was run again, the newest.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dltutorial import machine, paths
from dltutorial.convergence.energy import Energy
from dltutorial.convergence.recipe import SolutionRecipe, SolutionTask
from dltutorial.profile.timing import duration
from dltutorial.record import records
from dltutorial.record.table import Table

if TYPE_CHECKING:
    from dltutorial.convergence.attempt import Attempt

WHAT = "time to solution"
_HEAD = ("rank", "recipe: knobs that are not the defaults", "time to target", "device time", "seeds", "energy", "US$")


def write(
    writer: records.Writer,
    recipe: SolutionRecipe,
    task: SolutionTask,
    attempts: "Sequence[Attempt]",
    energy: Energy | None = None,
    usd: float | None = None,
) -> dict:
    """Append one recipe's attempts to the records.

    Raises:
        CourseError: the file cannot be written.
    """
    reached = sum(attempt.reached for attempt in attempts)
    whole = reached == len(attempts)
    return writer.write(
        WHAT,
        statistics.median(attempt.seconds for attempt in attempts) if whole else None,
        "s",
        recipe=recipe.describe(),
        task=_key(task),
        seeds=len(attempts),
        reached=reached,
        device_s=statistics.median(attempt.device_s for attempt in attempts) if whole else None,
        energy=machine.UNKNOWN if energy is None else str(energy).partition(" (")[0],
        energy_how=energy.how if energy else "",
        usd=machine.UNKNOWN if usd is None else f"{usd:.2g}",
    )


def board(preset: str, task: SolutionTask, file: Path | None = None) -> list[dict[str, Any]]:
    """This machine's records for one task, each with its ``rank``: the soonest first; those that missed it last, None.

    Raises:
        CourseError: the file of records is damaged.
    """
    file, where = file or paths.records_file(), (WHAT, _key(task), machine.label(), preset)
    newest: dict[str, dict[str, Any]] = {}
    for record in records.read(file) if file.exists() else ():
        if tuple(record.get(name) for name in ("what", "task", "machine", "preset")) == where:
            newest[record["recipe"]] = record
    there = sorted((record for record in newest.values() if record["value"] is not None), key=lambda r: r["value"])
    missed = [record | {"rank": None} for record in newest.values() if record["value"] is None]
    return [record | {"rank": rank} for rank, record in enumerate(there, 1)] + missed


def table(board: Iterable[Mapping[str, Any]]) -> Table:
    """A board, or some of its records."""
    lines = [
        (
            f"{record['rank']}." if record["rank"] else "–",
            record["recipe"],
            duration(record["value"]) if record["rank"] else "not reached",
            duration(record["device_s"]) if record["rank"] else "–",
            f"{record['reached']} of {record['seeds']}",
            record["energy"],
            record["usd"],
        )
        for record in board
    ]
    return Table.of(_HEAD, lines)


def _key(task: SolutionTask) -> str:
    """A task in the records; other images of the same kind are the same task."""
    return repr(dataclasses.replace(task, seed=0))
