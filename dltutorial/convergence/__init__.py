"""Convergence at scale: how many steps a batch size needs, and what decides it."""
