"""Data: simulate the weather, store it, load it in batches."""
