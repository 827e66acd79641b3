"""Collectives built from send and receive, with counts of their bytes and a model of their time."""
