"""What a notebook says about itself, and what it will and will not show on this machine, in how many seconds.

In: the notebooks' first headings and metadata, records of earlier runs. Out: one frozen ``ChapterCard`` a notebook.

    "dltutorial": {"chapter": "01", "minutes": 40, "smoke_s": 55, "needs": [], "better_with": ["cuda"]}

``minutes`` are a learner's, ``smoke_s`` the seconds of a run in preset smoke (``laptop_s`` and so on if known);
``needs`` and ``better_with`` name what ``has`` knows.
"""

import importlib.util
import json
import re
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dltutorial import config, machine, paths
from dltutorial.course import notebooks
from dltutorial.errors import CourseError
from dltutorial.machine import Machine
from dltutorial.profile import toolchain
from dltutorial.record import records

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class ChapterCard:
    """What one notebook says about itself; None for what it leaves out."""

    number: str
    title: str
    minutes: int | None
    run_s: dict[str, float]
    needs: tuple[str, ...]
    better_with: tuple[str, ...]


def has(need: str, here: Machine) -> bool:
    """Whether this machine has ``need``: cuda, slurm, browser, compiler, else a program or Python package so named."""
    known = {
        "cuda": here.device == "cuda",
        "slurm": here.slurm,
        "browser": any(map(shutil.which, BROWSERS)),
        "compiler": toolchain.missing(here.device) is None,
    }
    if need in known:
        return known[need]
    try:
        return bool(shutil.which(need) or importlib.util.find_spec(need))
    except (ImportError, ValueError):
        return False


def chapters(folder: Path) -> list[ChapterCard]:
    """What the notebooks in ``folder`` say about themselves, in order of their file names.

    Raises:
        CourseError: there are none, or one is no notebook.
    """
    return [_card(file) for file in notebooks.chapters(folder)]


def _card(file: Path) -> ChapterCard:
    try:
        notebook = json.loads(file.read_text(encoding="utf-8"))
        about = notebook["metadata"].get("dltutorial", {})
        run_s = {preset: float(about[f"{preset}_s"]) for preset in config.PRESETS if f"{preset}_s" in about}
        needs, better_with = (tuple(about.get(key, ())) for key in ("needs", "better_with"))
        title, number = _title(notebook["cells"]) or file.stem, str(about.get("chapter", file.name[:2]))
        return ChapterCard(number, title, about.get("minutes"), run_s, needs, better_with)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CourseError(
            f"{file} is not a notebook of the course ({error!r}); restore it, e.g. with git checkout"
        ) from error


def _title(cells: Sequence[dict[str, Any]]) -> str | None:
    """The first heading, without a number in front."""
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    lines = (line.strip() for text in texts for line in text.splitlines())
    return next((re.sub(r"^#+\s*(\d+\W+)?", "", line) for line in lines if line.startswith("#")), None)


def run_time(card: ChapterCard, before_s: float | None, preset: str) -> str:
    """How long a chapter runs in a preset: as measured, else as its notebook says."""
    if before_s is not None:
        return f"{before_s:.0f} s (measured here)"
    of = preset if preset in card.run_s else "smoke"
    return f"about {card.run_s[of]:.0f} s in {of}" if of in card.run_s else machine.UNKNOWN


def shows(card: ChapterCard, here: Machine) -> str:
    """What a chapter will and will not show on this machine."""
    if lacking := [need for need in card.needs if not has(need, here)]:
        return f"cannot run: needs {', '.join(lacking)}"
    if lacking := [need for need in card.better_with if not has(need, here)]:
        return f"runs; not shown here: what needs {', '.join(lacking)}"
    return "shows everything"


def measured_s(preset: str) -> dict[str, float]:
    """Median seconds of earlier runs of each chapter on this machine in this preset, from the records."""
    found: dict[str, list[float]] = {}
    try:
        for record in records.read(paths.records_file()):
            same = record.get("machine") == machine.label() and record.get("preset") == preset
            if same and record.get("kind") == "run" and record.get("unit") == "s":
                found.setdefault(record["chapter"], []).append(float(record["value"]))
    except (CourseError, TypeError, ValueError, KeyError, AttributeError):
        pass  # no records yet, or a damaged file: the notebooks' own estimates stand
    return {chapter: statistics.median(seconds) for chapter, seconds in found.items()}
