"""Explorers: one for each idea that is better moved than read. A cell that ends with ``explorers.batches(…)`` shows it.

Each is a small function over a model of the library that has tests of its own.
"""

from dltutorial.course.explorers.allreduce import allreduce
from dltutorial.course.explorers.batches import batches
from dltutorial.course.explorers.launches import launches
from dltutorial.course.explorers.numbers import numbers
from dltutorial.course.explorers.overlap import overlap
from dltutorial.course.explorers.pipeline import pipeline
from dltutorial.course.explorers.roofline import roofline
from dltutorial.course.explorers.scaling import scaling

__all__ = ["allreduce", "batches", "launches", "numbers", "overlap", "pipeline", "roofline", "scaling"]
