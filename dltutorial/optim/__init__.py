"""Optimizers, and schedules of learning rate and batch size, written out."""
