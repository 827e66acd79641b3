"""How many nodes, cores, bytes and minutes a class takes: ``dltutorial doctor --class N``.

In: the number of learners, chapters, one node. Out: a :class:`Plan`, every number of which rests on a measurement (of
this machine's records, else of ``reference/course_runs.csv`` and ``class_costs.csv``) or on an assumption, and says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dltutorial import machine
from dltutorial.errors import CourseError
from dltutorial.paths import records_file
from dltutorial.record import plots, records

CORES_A_LEARNER = 2  # what every chapter was measured with; on one core its ranks and threads wait for each other
MOST_LEARNERS = 10_000
BEFORE_MIN, AFTER_MIN = 30, 15
_SPARE_PART = 0.05
_ROOM_ON_NODE = 0.9  # of a node's memory: the rest is the system's and the file cache's


@dataclass(frozen=True)
class Node:
    """One machine of the class; ``gpus`` is shown, and not part of the estimate."""

    cores: int
    memory_bytes: int
    gpus: int = 0


@dataclass(frozen=True)
class Run:
    """One chapter as it ran: seconds, peak memory, and where that was measured."""

    seconds: float
    peak_bytes: int
    where: str


@dataclass(frozen=True)
class Plan:
    """What a class needs.

    Attributes:
        learners, chapters, minutes: asked for; the minutes are those from the first to the last.
        runs: chapter → how it ran.
        learner_bytes: memory of one learner at the worst.
        seats: learners on a node; ``by_cores`` and ``by_memory`` are what each of the two allows.
        nodes, spare: for all, and a few more.
        disk_bytes: for all, data shared.
    """

    learners: int
    chapters: tuple[str, ...]
    minutes: int
    node: Node
    runs: Mapping[str, Run]
    learner_bytes: float
    by_cores: int
    by_memory: int
    disk_bytes: float

    @property
    def seats(self) -> int:
        """Learners on a node."""
        return max(1, min(self.by_cores, self.by_memory, self.learners))

    @property
    def nodes(self) -> int:
        """For all, none spare."""
        return math.ceil(self.learners / self.seats)

    @property
    def spare(self) -> int:
        """Nodes more, for one that fails on the day."""
        return math.ceil(self.nodes * _SPARE_PART)

    @property
    def reserved_min(self) -> int:
        """How long to reserve."""
        return BEFORE_MIN + self.minutes + AFTER_MIN

    @property
    def worst(self) -> str:
        """The chapter that takes most memory."""
        return max(self.runs, key=lambda chapter: self.runs[chapter].peak_bytes)

    @property
    def longest(self) -> str:
        """The chapter that computes longest."""
        return max(self.runs, key=lambda chapter: self.runs[chapter].seconds)


def plan(learners: int, chapters: Sequence[str], minutes: int, node: Node, preset: str) -> Plan:
    """What so many learners need for these chapters.

    Raises:
        CourseError: no possible number of learners or minutes, or a node on which not even one can work.
    """
    if not 1 <= learners <= MOST_LEARNERS:
        raise CourseError(f"--class {learners}: a class has 1 to {MOST_LEARNERS:,} learners")
    if not 1 <= minutes <= 7 * 24 * 60:
        raise CourseError(f"--minutes {minutes}: give minutes from 1 to 10,080, which is a week")
    runs, fixed = measured(chapters, preset), costs()
    learner_bytes = max(run.peak_bytes for run in runs.values()) + fixed["server"] + fixed["kernel"]
    by_memory = int(_ROOM_ON_NODE * node.memory_bytes // learner_bytes)
    if node.cores < 1 or by_memory < 1:
        need = f"{learner_bytes / _ROOM_ON_NODE / 1e9:.1f} GB"
        raise CourseError(
            f"a node of {node.cores} cores and {node.memory_bytes / 1e9:.3g} GB is too small for one learner; "
            f"take one of {CORES_A_LEARNER} cores and {need} at least"
        )
    disk_bytes = fixed["environment"] + fixed["data"] + learners * fixed["runs"]
    by_cores = max(1, node.cores // CORES_A_LEARNER)
    return Plan(learners, tuple(chapters), minutes, node, runs, learner_bytes, by_cores, by_memory, disk_bytes)


def measured(chapters: Sequence[str], preset: str) -> dict[str, Run]:
    """How each chapter ran: here if this machine's records know, in the worst case; else as recorded with the course.

    Raises:
        CourseError: nothing is known of a chapter.
    """
    known = _recorded()
    known.update(_here(preset))
    if missing := [chapter for chapter in chapters if chapter not in known]:
        raise CourseError(f"chapter {missing[0]} has not been measured; run it first: dltutorial run {missing[0]}")
    return {chapter: known[chapter] for chapter in chapters}


def costs() -> dict[str, float]:
    """Bytes that do not depend on the chapter: a server's, a kernel's, the environment's, the data's and so on."""
    return {row["what"]: float(row["mbyte"]) * 1e6 for row in plots.reference("class_costs")}


def _recorded() -> dict[str, Run]:
    found = {}
    for row in plots.reference("course_runs"):
        peak_bytes = int(float(row["peak_mbyte"]) * 1e6)
        found[row["chapter"]] = Run(float(row["seconds"]), peak_bytes, f"{row['machine']}, {row['date']}, preset smoke")
    return found


def _here(preset: str) -> dict[str, Run]:
    """The worst of each chapter's runs on this machine, from its records; none where they are missing or damaged."""
    found: dict[str, Run] = {}
    try:
        for record in records.read(records_file()):
            same = record.get("machine") == machine.label() and record.get("preset") == preset
            if same and record.get("kind") == "run" and record.get("peak_bytes"):
                before = found.get(record["chapter"], Run(0.0, 0, ""))
                seconds, peak = float(record["value"]), int(record["peak_bytes"])
                worst = max(before.seconds, seconds), max(before.peak_bytes, peak)
                found[record["chapter"]] = Run(*worst, f"this machine's records, preset {preset}")
    except (CourseError, TypeError, ValueError, KeyError):
        return {}
    return found
