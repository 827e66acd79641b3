"""Explorers are models with sliders. A cell that ends with a call such as ``explorers.batches(…)`` shows one."""

from dltutorial.course.explorers.allreduce import allreduce
from dltutorial.course.explorers.batches import batches
from dltutorial.course.explorers.memory import memory
from dltutorial.course.explorers.numbers import numbers
from dltutorial.course.explorers.pipeline import pipeline
from dltutorial.course.explorers.roofline import roofline
from dltutorial.course.explorers.scaling import scaling

__all__ = ["allreduce", "batches", "memory", "numbers", "pipeline", "roofline", "scaling"]
