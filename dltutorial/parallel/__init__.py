"""Parallel training by hand: data, shards, tensors, tokens and pipelines, each in one file."""
