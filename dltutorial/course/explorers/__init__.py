"""Explorers: one for each idea that is better moved than read. ``explorers.batches(points, …)`` shows one.

Each is a small function over a model of the library that has tests of its own; its module also has ``make``, which
returns the explorer without showing it, and ``example``, the same with example numbers.
"""

import importlib
from collections.abc import Iterator

from dltutorial.course.explorers.allreduce import allreduce
from dltutorial.course.explorers.batches import batches
from dltutorial.course.explorers.launches import launches
from dltutorial.course.explorers.memory import memory
from dltutorial.course.explorers.numbers import numbers
from dltutorial.course.explorers.overlap import overlap
from dltutorial.course.explorers.parts import Explorer
from dltutorial.course.explorers.pipeline import pipeline
from dltutorial.course.explorers.roofline import roofline
from dltutorial.course.explorers.scaling import scaling

__all__ = [
    "allreduce",
    "batches",
    "examples",
    "launches",
    "memory",
    "numbers",
    "overlap",
    "pipeline",
    "roofline",
    "scaling",
]


def examples() -> Iterator[tuple[str, Explorer]]:
    """Every explorer by name, ready to be drawn with example numbers."""
    for name in __all__:
        if name != "examples":
            yield name, importlib.import_module(f"{__name__}.{name}").example()
