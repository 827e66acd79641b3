"""Explorers: one for each idea better moved than read. A cell that ends with ``explorers.batches(…)`` shows it."""

from dltutorial.course.explorers.device import numbers, pipeline, roofline
from dltutorial.course.explorers.memory import memory
from dltutorial.course.explorers.scale import allreduce, batches, overlap, scaling

__all__ = ["allreduce", "batches", "memory", "numbers", "overlap", "pipeline", "roofline", "scaling"]
