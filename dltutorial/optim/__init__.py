"""Optimizers and learning-rate schedules, written out (chapters 12 and 14).

The files of this folder are these.

    schedules.py    learning-rate schedules
    lars.py         LARS, the optimizer
    lamb.py         LAMB, the optimizer
    layerwise.py    what LARS and LAMB share
"""
